"""One browser for all tests of the page."""

from collections.abc import Iterator

import pytest

from tests.reports.page.chromium import Page, find


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of Chromium; without it, tests that need one are skipped."""
    program = find()
    if program is None:
        pytest.skip("no Chromium on this machine")
    try:
        tab = Page(program, tmp_path_factory.mktemp("profile"))
    except (RuntimeError, OSError) as error:
        pytest.skip(f"{program} does not start: {error}")
    yield tab
    tab.close()
