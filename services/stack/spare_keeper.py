"""Keeps a spare process for the next one that dies (services.stack.spare)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MODULES = ("services.egress", "services.node", "services.source")
"""The modules that a spare can run."""

COMMAND = (sys.executable, "-m", "services.stack.spare")

END_S = 5.0


class SpareKeeper:
    """At most one spare at a time. spawn: starts COMMAND with a pipe as its stdin. Only for the thread that starts
    processes."""

    def __init__(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._spawn = spawn
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Start a spare if there is none. A spare that died is replaced only after `become` has found that out, so that a
        failing start is not repeated for ever."""
        if self._process is None:
            self._process = self._spawn()

    def become(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        """Turn the spare into a process of this command, with additional variables, and its output in a log. None if there is
        no spare, or it cannot run the command."""
        if self._process is None or not _can_become(command):
            return None
        process, self._process = self._process, None
        request = {"module": command[2], "arguments": command[3:], "environment": dict(environment), "log": str(log)}
        try:
            _write(process, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            process.wait()
            return None
        return process

    def close(self) -> None:
        """End the spare, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError):
                _write(process, b"")
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _can_become(command: Sequence[str]) -> bool:
    return tuple(command[:2]) == COMMAND[:2] and command[2] in MODULES


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(line)
