"""The process that the supervisor keeps for the next one that dies (services.stack.spare)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MODULES = ("services.egress", "services.node", "services.source")
"""What a spare can become."""

COMMAND = (sys.executable, "-m", "services.stack.spare")

END_S = 5.0


class SpareKeeper:
    """At most one at a time. spawn: starts COMMAND with a pipe as its stdin. For the thread that may start processes."""

    def __init__(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._spawn = spawn
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        """Have one. Where it dies, there is none until it would have been needed: what fails to begin is not tried for ever."""
        if self._process is None:
            self._process = self._spawn()

    def become(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes] | None:
        """The spare as a process of this command, with these variables too, and its output in a log. None where there is no
        spare, or it cannot be that."""
        if self._process is None or not _can_become(command):
            return None
        process, self._process = self._process, None
        told = {"module": command[2], "arguments": command[3:], "environment": dict(environment), "log": str(log)}
        try:
            _tell(process, json.dumps(told).encode() + b"\n")
        except BrokenPipeError:
            process.wait()
            return None
        return process

    def close(self) -> None:
        """End it, if it is still one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(BrokenPipeError):
                _tell(process, b"")
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _can_become(command: Sequence[str]) -> bool:
    return tuple(command[:2]) == COMMAND[:2] and command[2] in MODULES


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(line)
