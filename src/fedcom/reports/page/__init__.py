"""Run folders as one self-contained HTML page."""

from fedcom.reports.page.build import write

__all__ = ["write"]
