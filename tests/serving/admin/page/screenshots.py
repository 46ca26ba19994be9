"""Takes pictures of the operations page: python -m tests.serving.admin.page.screenshots docs

Two for the docs; with `--all`, the whole page in both widths and both colour schemes, to look at after a change.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankhouse.serving.admin.operations_page import PAGE
from rankhouse.serving.control.state_stores import open_state_store
from tests.serving.admin.page.browser import Browser, Page
from tests.serving.admin.page.scene import MODEL, Scene
from tests.serving.admin.world import RunningAdmin


@dataclass(frozen=True)
class Look:
    """One picture; `height` None is the whole page, `top` the element that it begins with."""

    file: str
    width: int
    height: int | None = None
    is_dark: bool = False
    top: str = "header"


FOR_DOCS = (
    Look("operations-page.webp", 1280, 1130),
    Look("operations-page-dark.webp", 1280, 1120, True, "#traffic-title"),
)
ALL = tuple(
    Look(f"{name}{'-dark' * is_dark}.png", width, None, is_dark)
    for name, width in (("wide", 1280), ("narrow", 390))
    for is_dark in (False, True)
)


def take(folder: Path, looks: Sequence[Look]) -> None:
    """Takes pictures of a day of operations."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        store = open_state_store(f"sqlite://{scratch}/state.db", timeout_seconds=60.0)
        scene = Scene(store, time.time())
        scene.play()
        admin = RunningAdmin(store, scratch, model=MODEL, catalog=scene.catalog, page=PAGE)
        with admin, Browser(scratch) as browser:
            for look in looks:
                page = browser.page(width=look.width, height=look.height or 900, is_dark=look.is_dark)
                _sign_in(page, admin, scene)
                _picture(page, folder, look)
                page.close()
        store.close()


def _sign_in(page: Page, admin: RunningAdmin, scene: Scene) -> None:
    page.open(admin.url)
    page.fill("#key", admin.key)
    page.click("Sign in")
    page.wait_for_text(MODEL, "#model")
    for _ in range(3):  # Rates are of what comes while somebody looks.
        time.sleep(1.0)
        scene.go_on(180)
    time.sleep(2.0)


def _picture(page: Page, folder: Path, look: Look) -> None:
    if look.height is None:
        page.resize(look.width, min(page.evaluate("document.documentElement.scrollHeight"), 6000))
    # The bar sticks to the top, and would cover what is scrolled there.
    above = 76 if look.top != "header" else 0
    page.evaluate(f"scrollTo(0, document.querySelector('{look.top}').getBoundingClientRect().top + scrollY - {above})")
    time.sleep(0.5)
    page.picture(folder / look.file)


if __name__ == "__main__":
    arguments = [each for each in sys.argv[1:] if each != "--all"]
    take(Path(arguments[0]), ALL if "--all" in sys.argv else FOR_DOCS)
