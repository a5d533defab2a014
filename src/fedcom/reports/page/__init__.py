"""The HTML page that `fedcom report` makes of run folders, in one file."""

from fedcom.reports.page.build import write

__all__ = ["write"]
