"""An embedded installation as its users start it: `boreal up --embedded`, in a directory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.stack.servers import free_port
from tests.command_line import run_command


def boreal(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command; `up` as users call it, since what it starts outlives it."""
    if arguments[0] != "up":
        return run_command(list(arguments))
    command = [sys.executable, "-m", "boreal", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@dataclass
class Up:
    """A running installation."""

    data: Path
    status: dict[str, Any]

    @property
    def link(self) -> str:
        return f"{self.status['api']}/#token={self.status['token']}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """The answer's status, headers and JSON."""
        given = {"Authorization": f"Bearer {self.status['token']}", "Content-Type": "application/json", **headers}
        sent = {name: value for name, value in given.items() if value}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.status['api']}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read()
                return answer.status, dict(answer.headers), json.loads(text) if text[:1] in (b"{", b"[") else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), json.loads(error.read() or b"null")


@contextmanager
def demo_up(data: Path) -> Iterator[Up]:
    """The demo, running; it is down in the end."""
    done = boreal("up", "--embedded", "--demo", "--data", str(data), "--port", str(free_port()), "--json")
    try:
        assert done.returncode == 0, done.stderr
        yield Up(data, json.loads(done.stdout))
    finally:
        boreal("down", "--data", str(data))


def begin_again(up: Up) -> None:
    """Start the demo once more, where its process was killed."""
    done = boreal("up", "--embedded", "--demo", "--data", str(up.data), "--json")
    assert done.returncode == 0, done.stderr
