"""Drives a headless Chromium over its DevTools pipe: opens pages from disk, runs JavaScript in them, takes pictures.
Python's standard library only: no driver, no websocket.

usage: browser.py PAGE.html[#tab] PICTURE.png [WIDTH] [light|dark] [JAVASCRIPT...]
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--remote-debugging-pipe"]


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. `problems` has what the console said and what was thrown; `requests` what was asked of anyone."""

    def __init__(self) -> None:
        program = find_chromium()
        if program is None:
            raise RuntimeError("no chromium on PATH: `apt-get install chromium`")
        to_child, self.out = os.pipe()
        self.answers, from_child = os.pipe()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)

        def wire() -> None:  # the browser reads commands on 3 and answers on 4; dup first, lest one covers the other
            commands, answers = os.dup(to_child), os.dup(from_child)
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        command = [program, *FLAGS, "--user-data-dir=" + self.folder.name, "about:blank"]
        self.process = subprocess.Popen(command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        self.number, self.buffer, self.session = 0, b"", ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self.note(message.get("method", ""), message.get("params", {}))
        return message

    def note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(event["exceptionDetails"].get("exception", {}).get("description", str(event)))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(str(event["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"][:120])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def js(self, text: str) -> Any:
        """The value of an expression, or of the promise it gives."""
        result = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", str(result)))
        return result["result"].get("value")

    def open(self, page: str | Path, width: int = 1280, height: int = 900, dark: bool = False,
             seconds: float = 30) -> float:
        """Opens a page (with #tab if wanted), waits until it is drawn or has failed, and says how long that took."""
        path, _, tab = str(page).partition("#")
        self.call("Page.navigate", url="about:blank")  # the same address with another #tab would not be loaded again
        self.problems, self.requests = [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        began = time.monotonic()
        self.call("Page.navigate", url=Path(path).resolve().as_uri() + ("#" + tab if tab else ""))
        while not self.js("document.documentElement?.dataset.state"):
            if time.monotonic() - began > seconds:
                raise RuntimeError("not drawn: " + "; ".join(self.problems))
            time.sleep(.03)
        self.settle()
        return time.monotonic() - began

    def settle(self) -> None:
        """Waits until what was asked for has been painted."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def state(self) -> str:
        return str(self.js("document.documentElement.dataset.state"))

    def press(self, key: str) -> None:
        """A key, as the keyboard sends it to whatever has the focus."""
        text = key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")
        self.settle()

    def shot(self, file: str | Path, height: int | None = None) -> None:
        """A picture of the page, whole or down to a height."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        Path(file).write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass  # it closes the pipe before it answers
        self.process.wait(10)
        os.close(self.out)
        os.close(self.answers)
        self.folder.cleanup()


if __name__ == "__main__":
    page, picture, width, theme, *scripts = [*sys.argv[1:], *("1280", "light")[max(0, len(sys.argv) - 3):]]
    browser = Browser()
    print(f"{browser.open(page, int(width), dark=theme == 'dark'):.2f} s to draw: {browser.state()}")
    for script in scripts:
        print(browser.js(script))
        browser.settle()
    browser.shot(picture)
    print("problems:", browser.problems)
    browser.close()
