"""A headless Chromium of this machine, told what to do through a pair of pipes.

    python -m tests.spark.browser REPORT.html DIRECTORY

writes pictures of a page as a phone, a desktop and paper show it, in both themes, to look at.
Nothing but pipes and files: names are not resolved, so that no request can leave the machine.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PHONE, DESKTOP, PAPER = (390, 844), (1280, 900), (794, 1123)
_SWITCHES = (
    "--headless",
    "--no-sandbox",  # a container has none to give, and the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
_PIPES = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""It expects its pipes at the numbers 3 and 4."""


def find() -> str | None:
    """The program, where there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Shown:
    """A page as it was loaded."""

    browser: "Browser"
    session: str

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.ask(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        said = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def picture(self, path: Path) -> None:
        """All of it, however long."""
        said = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(said["data"]))

    def paper(self) -> bytes:
        """As PDF."""
        said = self.ask("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        return base64.b64decode(said["data"])

    @property
    def complaints(self) -> list[str]:
        """What the page wrote to the console, and what the browser said of it."""
        said = []
        for event in self.browser.heard:
            if event.get("sessionId") != self.session:
                continue
            if event["method"] in {
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
                "Log.entryAdded",
            }:
                said.append(json.dumps(event["params"]))
        return said

    @property
    def asked_for(self) -> list[str]:
        """The addresses it asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.browser.heard
            if event.get("sessionId") == self.session
            and event["method"] == "Network.requestWillBeSent"
        ]


class Browser:
    """The process, and what it was asked and said."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, os.fdopen(back, "rb", buffering=0)
        self._number = 0
        self._rest = b""
        self.heard: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", /, **parameters: Any) -> dict[str, Any]:
        """Its answer; what else it says meanwhile is kept in `heard`."""
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            said["sessionId"] = session
        os.write(self._to, json.dumps(said).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self.heard.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = self._back.read(1 << 20)
            if not read:
                raise EOFError("the browser is gone")
            self._rest += read
        one, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(one))

    @contextlib.contextmanager
    def open(
        self, page: Path, size: tuple[int, int], *, dark: bool = False, media: str = "screen"
    ) -> Iterator[Shown]:
        """A page in a tab of its own, loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        shown = Shown(self, session)
        width, height = size
        shown.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        shown.ask("Emulation.setEmulatedMedia", media=media, features=[theme])
        for domain in ("Page", "Runtime", "Log", "Network"):
            shown.ask(f"{domain}.enable")
        shown.ask("Page.navigate", url=page.resolve().as_uri())
        while not any(
            one["method"] == "Page.loadEventFired" and one.get("sessionId") == session
            for one in self.heard
        ):
            self.heard.append(self._next())
        try:
            yield shown
        finally:
            self.ask("Target.closeTarget", targetId=target)


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """A browser until the block is left; `find` must have found one."""
    program = find()
    assert program is not None, "there is a browser"
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="brokerd-browser-", ignore_cleanup_errors=True) as home:
        pipes = [sys.executable, "-c", _PIPES, str(to_read), str(back_write)]
        words = [*pipes, program, *_SWITCHES, f"--user-data-dir={home}"]
        with subprocess.Popen(
            words,
            pass_fds=(to_read, back_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": home},
        ) as child:
            os.close(to_read)
            os.close(back_write)
            browser = Browser(to_write, back_read)
            try:
                yield browser
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                os.close(to_write)
                browser._back.close()


def main() -> int:
    page, directory = Path(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    with running() as browser:
        for size, name in ((PHONE, "phone"), (DESKTOP, "desktop")):
            for dark in (False, True):
                with browser.open(page, size, dark=dark) as shown:
                    shown.picture(directory / f"{name}-{'dark' if dark else 'light'}.png")
        with browser.open(page, PAPER, media="print") as shown:
            shown.picture(directory / "print.png")
            (directory / "print.pdf").write_bytes(shown.paper())
    return 0


if __name__ == "__main__":
    sys.exit(main())
