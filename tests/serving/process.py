"""A server in its own process, and a client based on urllib."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forking import ForkedProcess

SERVE = "import sys; from bertvision.cli import main; sys.argv[0] = 'bertvision'; main()"
MODULES = ("bertvision.cli", "bertvision.serving.server", "bertvision.trained_model")


class Process:
    """The process of `bertvision serve`, its address and its log."""

    def __init__(self, place: Path, *words: object, **environment: str):
        self.log_file = place / "server.log"
        command = ["serve", *map(str, words), "--port", "0"]
        self.process = ForkedProcess(SERVE, command, MODULES, place / "server.out", self.log_file, environment)
        try:
            self.url = self._address()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def _address(self) -> str:
        while self.process.poll() is None:
            if found := re.search(r"Serving at (http://\S+)/", self.process.out.read_text()):
                return found[1]
            time.sleep(0.02)
        raise AssertionError(f"the server did not start: {self.log_file.read_text()}")

    def wait_ready(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if self.get("/readyz")[0] == 200:
                return
            time.sleep(0.05)
        raise AssertionError("the server is not ready after a minute")

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
        return self.send("GET", path, None, headers)

    def ask(self, body: object, headers: dict[str, str] | None = None) -> tuple[int, dict]:
        status, answer, _ = self.send("POST", "/v1/predict", json.dumps(body).encode(), headers)
        return status, json.loads(answer)

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers; status 0: no connection."""
        given = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, body, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.read(), lowered(response.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), lowered(error.headers)
        except (OSError, urllib.error.URLError):
            return 0, b"", {}

    @property
    def events(self) -> list[dict]:
        """The log, one JSON object per line."""
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()


def lowered(headers) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}


@contextmanager
def serving(place: Path, *words: object, **environment: str) -> Iterator[Process]:
    process = Process(place, *words, **environment)
    try:
        yield process
    finally:
        process.stop()
