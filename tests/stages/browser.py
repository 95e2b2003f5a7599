"""A headless Chromium, driven through a pipe: what its developer tools speak, and no more packages.

Messages are JSON, each ended by a zero byte; Chromium reads them from its descriptor 3 and writes
answers and events to 4.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
MISSING = "no chromium is installed to open the pages with (Debian: apt-get install chromium)"
PATIENCE = 60.0  # seconds for one answer


class Browser:
    """One page of a browser.

    Attributes:
        faults: what the console called an error, and what could not be loaded.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._last = 0
        self._rest = b""
        self._session: str | None = None
        self._loaded = False
        self.faults: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{part}.enable")

    def call(self, method: str, **values: Any) -> Any:
        """Ask for something, and wait for the answer."""
        self._last += 1
        content = {"id": self._last, "method": method, "params": values}
        if self._session is not None:
            content["sessionId"] = self._session
        os.write(self._out, json.dumps(content).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def show(self, width: int) -> None:
        """Be a window of some width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address: str) -> None:
        """Load a page, and wait for its load event."""
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._read()

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript, a promise's once it is kept."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def picture(self) -> bytes:
        """What the window shows of the page, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            if time.monotonic() > end:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser is gone")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        content: dict[str, Any] = json.loads(line)
        self._hear(content.get("method", ""), content.get("params", {}))
        return content

    def _hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.faults.append(told["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.faults.append(str([each.get("value") for each in told["args"]]))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.faults.append(told["entry"]["text"])
        elif event == "Network.loadingFailed" and not told.get("canceled"):
            self.faults.append(f"not loaded: {told['errorText']}")


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser, ended when it is left.

    Args:
        profile: an empty folder for its files.
    """
    assert PROGRAM is not None
    for_it, to_browser = os.pipe()
    from_browser, of_it = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    # Descriptors 3 and 4, which are what Chromium takes, whatever the pipes' own numbers are.
    command = ["bash", "-c", f'exec "$@" 3<&{for_it} 4>&{of_it}', "chromium", PROGRAM, *options]
    command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command, pass_fds=(for_it, of_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(for_it)
    os.close(of_it)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        process.terminate()
        process.wait(timeout=30)
