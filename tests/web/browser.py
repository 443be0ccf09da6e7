"""A real browser, driven over the DevTools protocol through two pipes; no port, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

MISSING = "Chromium is missing: apt-get install chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
PATIENCE = 30.0


def program() -> str | None:
    """Where Chromium is, if it is anywhere."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One Chromium; every page is a tab of its own."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, command_end = _pipe()
        result_end, results = _pipe()
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        nowhere = os.open(os.devnull, os.O_RDWR)
        self._process = os.posix_spawn(
            program,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nowhere, 1),
                (os.POSIX_SPAWN_DUP2, nowhere, 2),
                (os.POSIX_SPAWN_DUP2, commands, 3),
                (os.POSIX_SPAWN_DUP2, results, 4),
            ],
            setpgroup=0,
        )
        for end in (commands, results, nowhere):
            os.close(end)
        self._commands, self._results = command_end, result_end
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        _write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def next_message(self) -> dict[str, Any]:
        deadline = monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select([self._results], [], [], max(0.0, deadline - monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._results, 1 << 20)
            assert part, "the browser is gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def page(self, width: int = 1440, height: int = 900, *, scheme: str = "light") -> Page:
        """A new tab."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, (width, height), scheme)

    def close(self) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._commands)
        os.close(self._results)


class Page:
    """One tab: what it shows, what went wrong in it, whom it asked."""

    def __init__(self, browser: Browser, session: str, size: tuple[int, int], scheme: str) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        width, height = size
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **given)

    def open(self, address: str, ready: str = "document.documentElement.dataset.ready") -> None:
        """Load an address and wait until the page says that it is ready."""
        self.ask("Page.navigate", url=address)
        self.until(ready)

    def run(self, code: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = self.ask(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            if self.run(f"(() => {{ try {{ return Boolean({condition}) }} catch {{}} }})()"):
                return
            self.run("new Promise((done) => setTimeout(done, 20))")
        raise AssertionError(f"never true: {condition}; {self.faults}")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def press(self, key: str, text: str = "") -> None:
        given = {"key": key, **({"text": text} if text else {})}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **given)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        """A screenshot as PNG."""
        content = self.ask("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(content))

    @property
    def faults(self) -> list[str]:
        """Every uncaught exception and every error on the console."""
        found = []
        for event in self._mine():
            given = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                detail = given["exceptionDetails"]
                found.append(detail.get("exception", {}).get("description") or detail["text"])
            if event["method"] == "Log.entryAdded" and given["entry"]["level"] == "error":
                found.append(given["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._mine()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _mine(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for as long as it is needed."""
    found = program()
    assert found, MISSING
    with tempfile.TemporaryDirectory(prefix="weft-browser", ignore_cleanup_errors=True) as folder:
        running = Browser(found, Path(folder))
        try:
            yield running
        finally:
            running.close()


def _pipe() -> tuple[int, int]:
    """Two ends that the child does not inherit, above those that it is given."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write(end: int, content: bytes) -> None:
    while content:
        content = content[os.write(end, content) :]
