"""Headless Chromium, driven by its DevTools protocol: real clicks and keys, and every request that a page makes."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from websockets.sync.client import connect

SECONDS = 300.0
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--disable-default-apps", "--hide-scrollbars", "--remote-debugging-port=0"),
)


class Browser:
    """A browser with a profile of its own, until the `with` ends."""

    def __init__(self, folder: Path) -> None:
        program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
        if program is None:
            raise FileNotFoundError(f"there is no browser here ({', '.join(_PROGRAMS)}): apt-get install chromium")
        self._profile = folder / "profile"
        self._log = (folder / "browser.log").open("w")
        command = [program, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._pages: list[tuple[str, Page]] = []

    def __enter__(self) -> "Browser":
        port_file = self._profile / "DevToolsActivePort"
        until(lambda: port_file.is_file() and len(port_file.read_text().split()) == 2, "the browser listens")
        self._address = f"http://127.0.0.1:{port_file.read_text().split()[0]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_pages()
        self._process.terminate()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(SECONDS)
        self._log.close()

    def page(self, *, width: int = 1280, height: int = 900, is_dark: bool = False) -> "Page":
        """Opens an empty page in a window of so many pixels."""
        target = httpx.put(f"{self._address}/json/new?about:blank", timeout=SECONDS).json()
        page = Page(target["webSocketDebuggerUrl"])
        self._pages.append((target["id"], page))
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        return page

    def close_pages(self) -> None:
        """Closes all pages: one that stays open goes on asking a server that may have ended."""
        for target, page in self._pages:
            page.close()
            httpx.get(f"{self._address}/json/close/{target}", timeout=SECONDS)
        self._pages.clear()


class Page:
    """One page.

    Attributes:
        urls: What it asked for, however that ended.
        complaints: What its console said of errors, refusals of its policy among them.
    """

    def __init__(self, address: str) -> None:
        self.urls: list[str] = []
        self.complaints: list[str] = []
        self._stack = ExitStack()
        # Without pings: on a machine that stalls, one that is answered late would end the connection.
        connecting = connect(address, max_size=None, open_timeout=SECONDS, ping_interval=None)
        self._connection = self._stack.enter_context(connecting)
        self._numbers = itertools.count(1)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._stack.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol, and takes note of the events that come before its answer."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=SECONDS))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, parameters: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.urls.append(parameters["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def resize(self, width: int, height: int) -> None:
        """Gives the window so many pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, url: str) -> None:
        """Goes to a page, and waits until its own files have come."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Waits until an expression of JavaScript is true."""
        return until(lambda: self.evaluate(f"Boolean({expression})"), expression, shown=lambda: self.text()[:2000])

    def text(self, selector: str = "body") -> str:
        """The text that is seen of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        """Waits until an element shows a text."""
        self.wait(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(text)})")

    def names(self, selector: str) -> list[str]:
        """The texts of all elements that are seen."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].filter((each) => each.checkVisibility())"
        return list(self.evaluate(f"{found}.map((each) => each.innerText.trim())"))

    def click(self, label: str, within: str = "body") -> None:
        """Clicks the button or summary with a label, with the mouse; again if it had just moved or was made anew."""
        candidates = f"[...document.querySelector({json.dumps(within)})?.querySelectorAll('button, summary') ?? []]"
        wanted = f"each.innerText.trim() === {json.dumps(label)} && each.checkVisibility() && !each.disabled"
        find = (
            f"(() => {{ const each = {candidates}.find((each) => {wanted}); "
            "if (!each) return null; window.isHit = false; "
            "each.addEventListener('click', () => { window.isHit = true; }, {once: true, capture: true}); "
            "each.scrollIntoView({block: 'center'}); const box = each.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        until(lambda: self._hits(find), f"a click on {label!r} within {within}", shown=lambda: self.text()[:2000])

    def _hits(self, find: str) -> bool:
        place = self.evaluate(find)
        if place is None:
            return False
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        return bool(self.evaluate("window.isHit"))

    def fill(self, selector: str, text: str) -> None:
        """Replaces what stands in a field, by the keyboard."""
        self.evaluate(
            f"(() => {{ const each = document.querySelector({json.dumps(selector)}); each.focus(); each.select(); }})()"
        )
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Presses a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
            if key == "Enter" and kind == "rawKeyDown":
                self.call("Input.dispatchKeyEvent", type="char", text="\r", key=key)

    def picture(self, path: Path) -> None:
        """Writes what is seen, as the file's name says: .png or .webp."""
        quality = {"quality": 82} if path.suffix == ".webp" else {}
        answer = self.call("Page.captureScreenshot", format=path.suffix[1:], **quality)
        path.write_bytes(base64.b64decode(answer["data"]))


def until(condition: Callable[[], Any], what: str, *, shown: Callable[[], str] = str) -> Any:
    """Waits until a condition holds; fails with what is shown when it does not in time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {SECONDS:g} s: {what}\n{shown()}")
