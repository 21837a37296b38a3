"""DATA/run: the supervisor of a stack, and the state of its processes that it last wrote."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from boreal.model.errors import UserError

SAME_SECOND_S = 1.0


def default_data() -> Path:
    """The directory of the user's own stack, the same whatever the current folder."""
    given = os.environ.get("BOREAL_DATA")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "boreal"


def state_path(data: Path) -> Path:
    return data / "run" / "state.json"


def read_state(data: Path) -> dict[str, Any] | None:
    """The last state; None if there is none: the stack was never started, or was stopped."""
    path = state_path(data)
    return json.loads(path.read_text()) if path.is_file() else None


def write_state(data: Path, state: Mapping[str, Any]) -> None:
    path = state_path(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(state, indent=1))


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old content or the new one."""
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(text)
    written.replace(path)


def identity(pid: int) -> dict[str, Any]:
    """Identifies a process for good: a pid alone may be reused by another process."""
    return {"pid": pid, "created": created(psutil.Process(pid))}


def created(process: psutil.Process) -> float:
    """When a process was started, in seconds; on Linux since the boot: psutil converts that to a time of day by a clock that
    may have been set since, for example when a virtual machine wakes up."""
    return process.create_time() - (psutil.boot_time() if psutil.LINUX else 0.0)


def is_same(process: psutil.Process, created_at: float) -> bool:
    """Whether it is the process that was started then, and not a later one with its pid."""
    return abs(created(process) - created_at) < SAME_SECOND_S


def living(named: Mapping[str, Any]) -> psutil.Process | None:
    """The process with this identity; None if it has ended."""
    if named["pid"] is None:
        return None
    with contextlib.suppress(ChildProcessError):
        os.waitpid(named["pid"], os.WNOHANG)  # if it is our own child and has ended: reap it
    try:
        process = psutil.Process(named["pid"])
        is_it = is_same(process, named["created"]) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if is_it else None


def problems(state: Mapping[str, Any]) -> dict[str, str]:
    """Why queries do not run in full, by their names, from a supervisor's state or status; only those that do not."""
    return {name: query["problem"] for name, query in (state.get("queries") or {}).items() if query["problem"]}


@contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Lock DATA for this process. UserError if another supervisor has it."""
    path = data / "run" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("BOREAL_DATA", str(data), "another supervisor uses it", "stop that one first") from None
        yield


def make_token(data: Path) -> None:
    """Make the token of an installation, if it has none; only the owner may read it."""
    path = data / "token"
    if not path.is_file():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32))


def read_token(data: Path) -> str | None:
    """The token of an installation; None if it has none."""
    path = data / "token"
    return path.read_text().strip() if path.is_file() else None
