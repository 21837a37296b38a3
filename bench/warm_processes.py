"""Processes of a query that start at once: forked off a server that has imported what they need, as a supervisor's spare has.
Imports take most of the processor time of a start, and say nothing of what the process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

WARM = ("services.source", "services.node", "services.egress", "services.monitor")
"""The modules whose processes are forked."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["services.stack.spare", "services.monitor.monitor"])
_lock = threading.Lock()
"""multiprocessing lets only one thread at a time start processes, or ask whether one has ended."""


class WarmProcess:
    """What tests and benchmarks use of a `subprocess.Popen`. It is killed when the process that started it exits."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        request = (module, list(arguments), dict(environment), str(log))
        self._process = _context.Process(target=_run, args=request, daemon=True)
        with _lock:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs; -N after signal N."""
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing to a process that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


AnyProcess = subprocess.Popen[bytes] | WarmProcess


def start_process(command: tuple[str, ...], environment: Mapping[str, str], log: Path) -> AnyProcess:
    """command: the program and its arguments; environment: all of it; log: gets what the process writes, and exists at once."""
    log.touch()
    if command[:2] == (sys.executable, "-m") and command[2] in WARM:
        return WarmProcess(command[2], command[3:], environment, log)
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def _run(module: str, arguments: list[str], environment: dict[str, str], log: str) -> None:
    os.environ.clear()
    # Not before: the import hides pandas from the process.
    from services.stack.spare import become

    become(module, arguments, environment, log)
