"""Keeps a spare process for the next one that dies (services.stack.spare)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from services.stack.channel import Started

MODULES = ("services.egress", "services.node", "services.source", "services.worker")
"""The modules that a spare can run."""

COMMAND = (sys.executable, "-m", "services.stack.spare")

END_S = 5.0


class SpareKeeper:
    """At most one spare at a time. spawn: starts COMMAND with a socket as its stdin. Only for the thread that starts
    processes."""

    def __init__(self, spawn: Callable[[], Started]) -> None:
        self._spawn = spawn
        self._spare: Started | None = None

    def keep(self) -> None:
        """Start a spare if there is none. A spare that died is replaced only after `become` has found that out, so that a
        failing start is not repeated for ever."""
        if self._spare is None:
            self._spare = self._spawn()

    def become(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Started | None:
        """Turn the spare into a process of this command, with additional variables, and its output in a log. None if there is
        no spare, or it cannot run the command."""
        if self._spare is None or not _can_become(command):
            return None
        (process, stdin), self._spare = self._spare, None
        request = {"module": command[2], "arguments": command[3:], "environment": dict(environment), "log": str(log)}
        try:
            stdin.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            stdin.close()
            process.wait()
            return None
        return process, stdin

    def close(self) -> None:
        """End the spare, if there is one."""
        if self._spare is None:
            return
        (process, stdin), self._spare = self._spare, None
        stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _can_become(command: Sequence[str]) -> bool:
    return tuple(command[:2]) == COMMAND[:2] and command[2] in MODULES
