"""Run folders as one self-contained HTML page."""

from fedcom.page.page import write

__all__ = ["write"]
