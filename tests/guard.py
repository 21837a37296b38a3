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

import psutil


def guard(root: Path) -> None:
    with (root / "users.lock").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        for path in root.rglob("server.json"):
            server = json.loads(path.read_text())
            if server["pid"] is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(server["pid"])
                    if process.create_time() == server["created"]:
                        process.kill()
        os.close(sys.stdin.fileno())  # before users.lock: who gets that next must find that there is no guard


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
