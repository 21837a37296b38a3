"""Ends the servers of a test run when the run is over, however it ended: `python guard.py ROOT`.

Every process of the run holds ROOT/users.lock (shared) for as long as it lives. Whoever is killed lets go of it, too, so
that to get it for oneself is to know that nobody is left. Standard input is ROOT/guard.lock, locked: one guard a run.
"""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil


def end(server: dict[str, Any]) -> None:
    if server["pid"] is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(server["pid"])
            # As services.stack.state has it, which a bare interpreter may not find.
            created = process.create_time() - (psutil.boot_time() if psutil.LINUX else 0.0)
            if abs(created - server["created"]) < 1.0:
                process.kill()


def guard(root: Path) -> None:
    with (root / "users.lock").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        # By os.walk, which takes no offence at a directory that is gone: the servers that still run remove some of theirs.
        for directory, _, names in os.walk(root):
            if "server.json" in names:
                end(json.loads(Path(directory, "server.json").read_text()))
        os.close(sys.stdin.fileno())  # before users.lock: who gets that next must find that there is no guard


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
