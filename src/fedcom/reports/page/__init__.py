"""The HTML page that `fedcom report` makes of run folders, in one file."""

from fedcom.reports.page.build import write
from fedcom.reports.page.serve import serve

__all__ = ["serve", "write"]
