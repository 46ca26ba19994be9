"""A browser, and an admin port with the page."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankhouse.serving.admin.operations_page import PAGE
from rankhouse.serving.control.state_store import StateStore
from tests.serving.admin.page.browser import Browser, Page
from tests.serving.admin.world import V1, V2, V3, RunningAdmin, has_stable, reports

SignIn = Callable[..., Page]


@pytest.fixture(scope="session")
def whole_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def browser(whole_browser: Browser) -> Iterator[Browser]:
    """The browser, whose pages are closed when a test ends."""
    yield whole_browser
    whole_browser.close_pages()


@pytest.fixture
def admin(store: StateStore, tmp_path: Path) -> Iterator[RunningAdmin]:
    has_stable(store, V2, previous=(V1,))
    reports(store, loaded=(V1, V2, V3))
    with RunningAdmin(store, tmp_path, page=PAGE) as running:
        yield running


@pytest.fixture
def sign_in(admin: RunningAdmin, browser: Browser) -> SignIn:
    """Opens the page and signs in, with the first key or another one."""

    def signed_in(key: str | None = None) -> Page:
        page = browser.page()
        page.open(admin.url)
        page.fill("#key", admin.key if key is None else key)
        page.press("Enter", 13)
        return page

    return signed_in
