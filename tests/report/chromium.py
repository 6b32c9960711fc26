"""A headless Chromium, driven through its DevTools protocol over a pipe: no package is needed for it."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 30  # for any answer
# The browser reads descriptor 3 and writes 4.
GIVE_PIPES = """
import os, sys
read, write = (os.dup(int(one)) for one in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.set_inheritable(3, True)  # they may have been 3 and 4 already
os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find():
    """The path of a browser, None where none is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One browser with one page; `problems` collects errors on the console, exceptions and requests that leave."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()

        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", GIVE_PIPES, str(to_read), str(to_write), find()),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"),
                *(f"--user-data-dir={self.folder}", "--remote-debugging-pipe", "about:blank"),
            ],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        self.problems, self._loaded = [], False
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def call(self, method, **parameters):
        """Ask, and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._notice(answer)

    def _receive(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], SECONDS)
            piece = os.read(self._in, 1 << 20) if ready else b""
            assert piece, "the browser does not answer"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _notice(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["entry"])[:500])
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"requested {url[:200]}")

    def open(self, path):
        """Load a file; returns the seconds until its load event."""
        self._loaded = False
        started = time.monotonic()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self._loaded:
            self._notice(self._receive())
        return time.monotonic() - started

    def size(self, width, height=900, *, phone=False):
        """The window, in pixels of style sheets."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def prefers(self, **features):
        """What the system prefers: color_scheme="dark"."""
        wanted = [{"name": f"prefers-{key.replace('_', '-')}", "value": value} for key, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def run(self, script):
        """The value of an expression in the page, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self):
        """Wait until the page has drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def press(self, key, text=None):
        """A key, as a person presses it."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9}
        codes |= {"Enter": 13, "Escape": 27, "+": 187, "-": 189, "0": 48}
        parameters = {"key": key, "windowsVirtualKeyCode": codes[key]}
        text = text or (key if len(key) == 1 else "\r" if key == "Enter" else None)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **parameters)
        self.call("Input.dispatchKeyEvent", type="keyUp", **parameters)
        self.settle()

    def touch(self, kind, *points):
        """Fingers at places of the window."""
        touching = [{"x": x, "y": y, "id": place} for place, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=touching)

    def mouse(self, kind, x, y, **more):
        """A movement, button or wheel at a place of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path, *, whole=False):
        """A PNG of the window, or of the whole page."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(image["data"]))

    def pdf(self, path):
        """The page as it is printed."""
        Path(path).write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        shutil.rmtree(self.folder, ignore_errors=True)
