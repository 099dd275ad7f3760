# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, driven over its debugging pipe: descriptor 3 takes commands, 4
gives answers, each a JSON text that a zero byte ends."""
from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
LIMIT = 60.0

if PROGRAM is None:
    raise unittest.SkipTest("no chromium here (Debian: chromium)")


class Browser:
    """One page. Use as a context: at its end no process and no file of it is left."""

    def __init__(self, width: int, height: int, dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="browser.", ignore_cleanup_errors=True)
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()

        def place_pipe() -> None:  # they may be 3 and 4 already, in whichever order
            one, two = os.dup(to_browser), os.dup(from_browser)
            os.dup2(one, 3)
            os.dup2(two, 4)

        self._process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--remote-debugging-pipe", "--lang=en-GB",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=place_pipe, start_new_session=True,
            env=os.environ | {"HOME": self._profile.name})
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._bytes, self._session = 0, b"", None
        self.said: list[str] = []  # what the page has complained of
        self.asked: list[str] = []  # every address that it has asked for
        pages = self._command("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in pages if one["type"] == "page")
        self._session = self._command("Target.attachToTarget",
                                      {"targetId": page, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._command(domain + ".enable")
        self.resize(width, height)
        self._command("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def _receive(self, end: float) -> dict:
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            if not piece:
                raise AssertionError("the browser does not answer")
            self._bytes += piece
        text, _, self._bytes = self._bytes.partition(b"\0")
        return json.loads(text)

    def _command(self, method: str, parameters: dict | None = None) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str | None, details: dict) -> None:
        if event == "Runtime.exceptionThrown":
            self.said.append(json.dumps(details["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.said.append(json.dumps(details["entry"]))
        elif event == "Network.requestWillBeSent":
            self.asked.append(details["request"]["url"])

    def resize(self, width: int, height: int = 900) -> None:
        self._command("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1,
                       "mobile": width < 600})

    def cut(self, selector: str) -> object:
        """The texts of what is wider than its box, at four widths."""
        found = {}
        for width in (360, 768, 1280, 1920):
            self.resize(width)
            found[width] = self.value(
                f"[...document.querySelectorAll('{selector}')].filter("
                "e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText).join()")
        return {width: text for width, text in found.items() if text}

    def open(self, address: str) -> None:
        self._command("Page.navigate", {"url": address})

    def value(self, expression: str) -> object:
        result = self._command("Runtime.evaluate",
                               {"expression": expression, "returnByValue": True,
                                "awaitPromise": True})
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str) -> object:
        """Until the expression is true in the page; its value."""
        end = time.monotonic() + LIMIT
        # Before the script of the page has run, its names and elements are not there.
        guarded = (f"(() => {{ try {{ return {expression} }} catch (e) {{ "
                   "if (e instanceof ReferenceError || e instanceof TypeError) return null; "
                   "throw e } })()")
        while not (value := self.value(guarded)):
            if time.monotonic() > end:
                text = self.value("document.body.innerText")
                raise AssertionError(f"waited in vain for {expression}; the page says:\n{text}")
            time.sleep(0.05)
        return value

    def media(self, name: str) -> None:
        """"print" or "screen"."""
        self._command("Emulation.setEmulatedMedia", {"media": name})

    def screenshot(self, path: Path, whole: bool = False) -> None:
        picture = self._command("Page.captureScreenshot",
                                {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(picture["data"]))
