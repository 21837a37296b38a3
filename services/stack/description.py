"""What the files of an installation in a directory say of it, read without its servers' clients: most commands need no more."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from boreal.model.errors import UserError
from services.stack.ports import HOST
from services.stack.state import living, read_state, read_token

VERSION = 1


@dataclass(frozen=True)
class StackDescription:
    """The installation in a directory, running or not: a stack, or an embedded one."""

    data: Path
    """The directory."""

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self._description()["sites"])

    @property
    def port(self) -> int:
        """The port of the API."""
        return int(self._description()["port"])

    @property
    def api(self) -> str:
        """The address of the API."""
        return f"http://{HOST}:{self.port}"

    @property
    def link(self) -> str:
        """The address of the API for a browser: what follows the # reaches neither a server nor its log."""
        return f"{self.api}/#token={self.token}"

    @property
    def is_embedded(self) -> bool:
        """Whether it is no stack, but an embedded installation (`services.stack.embedded`)."""
        return self.exists and bool(self._description().get("embedded"))

    @property
    def exists(self) -> bool:
        """Whether it was ever started."""
        return (self.data / "stack.json").is_file()

    @property
    def token(self) -> str | None:
        return read_token(self.data)

    def state(self) -> dict[str, Any] | None:
        """The state that its supervisor last wrote; None if no supervisor is alive."""
        state = read_state(self.data)
        return state if state is not None and living(state["supervisor"]) is not None else None

    def _description(self) -> dict[str, Any]:
        path = self.data / "stack.json"
        try:
            description: dict[str, Any] = json.loads(path.read_text())
            version = description["v"]
        except (ValueError, KeyError, TypeError):
            fix = 'name another directory, or write {"v": 1, "sites": ["a"], "port": 8080} to that file, with all its sites'
            raise UserError("--data", str(self.data), f"holds a {path.name} that is damaged", fix) from None
        if version != VERSION:
            problem = f"holds a stack of version {version}, and this boreal knows version {VERSION}"
            raise UserError("--data", str(self.data), problem, "name another directory, or use that version")
        return description


def is_local(data: Path | None) -> bool:
    """Whether a command refers to a stack on this machine: the one in a directory, or the user's own. If the environment names
    sites, it refers to an installation elsewhere."""
    return data is not None or not any(name.startswith(("BOREAL_SITES", "BOREAL_CONFIG")) for name in os.environ)


def stacks_up() -> list[Path]:
    """The directories of this user's local stacks that are up, by their supervisors."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:4] == supervisor_command(allow_chaos=False)[1:4]:
                found.add(process.environ().get("BOREAL_DATA"))
    return sorted(Path(data) for data in found if data)


def fix_for_nothing_up() -> str:
    """What to do where a directory holds no stack that is up, as when `boreal up` was given another one."""
    others = " or ".join(f"--data {data}" for data in stacks_up())
    return f"run boreal up, or give {others}, where a stack is up" if others else "run boreal up"


def supervisor_command(allow_chaos: bool, api_port: int | None = None, workers: int = 0) -> list[str]:
    chaos = ["--allow-chaos"] if allow_chaos else []
    api = ["--api", str(api_port)] if api_port is not None else []
    shared = ["--workers", str(workers)] if workers else []
    return [sys.executable, "-m", "services.stack.supervisor", "--local", *chaos, *shared, *api]
