"""Starts an embedded installation in the background, and says how it is. `boreal down` ends it as it ends a stack.

    DATA/stack.json      {"v": 1, "embedded": true, "port": N}
    DATA/token           the token of `boreal up`; only the owner may read it
    DATA/queries         the queries, with their logs      DATA/logs   the log of the process
    DATA/run/state.json  the running process
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from boreal.model.errors import BorealError, UserError
from deployment.status_fields import shown_process
from services.stack.children import python_environment
from services.stack.description import VERSION, StackDescription
from services.stack.ports import free_port, is_taken
from services.stack.state import identity, make_token, replace_file, write_state

DEFAULT_PORT = 8080
READY_WITHIN_S = 30.0
LOG_LINES_SHOWN = 8
_LOOK_S = 0.02
_RUN = "import services.hosting.fast_imports; from api.embedded_process import main; main()"
"""Not `-m api.embedded_process`: that would import the API before the imports are made fast."""


class EmbeddedFailed(BorealError):
    """The process did not start. The message holds the end of its log."""


class EmbeddedStack(StackDescription):
    """The embedded installation in a directory, running or not."""

    @property
    def exists(self) -> bool:
        """Whether an embedded installation was ever started here."""
        return bool(self._description().get("embedded"))

    def status(self) -> dict[str, Any]:
        """As `boreal status --json` prints it."""
        state = self.state()
        up = state is not None
        return {
            "ready": state["ready"] if state else False,
            "kafka": {},
            "redis": None,
            "api": self.api if up else None,
            "token": self.token if up else None,
            "processes": [shown_process(process) for process in state["processes"]] if state else [],
            "queries": sorted(unquote(path.parent.name) for path in self.data.glob("queries/*/query.json")) if up else [],
            "problems": {},
        }

    def up(self, port: int | None, allow_chaos: bool, is_demo: bool) -> bool:
        """Start it, and return when it is ready; False if it was running already. UserError if the directory or the port is in
        use; EmbeddedFailed if it does not get ready."""
        described = self._description()
        if described and not described.get("embedded"):
            problem = "holds a stack with Kafka"
            raise UserError("--data", str(self.data), problem, "name another directory with --data, or leave out --embedded")
        if self.state() is not None:
            if port is not None and port != self.port:
                raise UserError("--port", port, f"it is running with port {self.port}", "run boreal down first")
            return False
        chosen = port or (self.port if described else DEFAULT_PORT)
        if is_taken(chosen):
            if port is not None or described:
                problem = "is taken: another program listens there"
                raise UserError("--port", chosen, problem, "end that program, or give another --port")
            chosen = free_port()
        try:
            (self.data / "logs").mkdir(parents=True, exist_ok=True)
            replace_file(self.data / "stack.json", json.dumps({"v": VERSION, "embedded": True, "port": chosen}))
            make_token(self.data)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise UserError("--data", str(self.data), problem, "name a directory that you may write") from None
        self._spawn(allow_chaos, is_demo)
        self._await_ready()
        return True

    def _description(self) -> dict[str, Any]:
        """What stack.json says; {} if there is none."""
        path = self.data / "stack.json"
        if not path.is_file():
            return {}
        try:
            return dict(json.loads(path.read_text()))
        except (ValueError, TypeError):
            raise UserError("--data", str(self.data), "holds a stack.json that is damaged", "name another directory") from None

    @property
    def _log(self) -> Path:
        return self.data / "logs" / "api.log"

    def _spawn(self, allow_chaos: bool, is_demo: bool) -> None:
        options = [*(["--allow-chaos"] if allow_chaos else []), *(["--demo"] if is_demo else [])]
        command = [sys.executable, "-c", _RUN, "--data", str(self.data), "--port", str(self.port), *options]
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not a Popen, which warns when its process outlives it, as this one should.
        pid = os.posix_spawn(command[0], command, {**os.environ, **python_environment()}, file_actions=files, setsid=True)
        # From now on `down` finds it; it will soon write its own state.
        write_state(self.data, state_of(pid, is_ready=False))

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            state = self.state()
            if state is not None and state["ready"]:
                return
            if state is None or time.monotonic() > deadline:
                lines = self._log.read_text(errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:]
                what = "has ended" if state is None else f"is not ready after {READY_WITHIN_S:.0f} s"
                raise EmbeddedFailed(f"the process {what}; {self._log} ends with:\n" + "\n".join(lines))
            time.sleep(_LOOK_S)


def state_of(pid: int, is_ready: bool) -> dict[str, Any]:
    """The state file of an embedded installation: one process, which is its own supervisor."""
    me = identity(pid)
    process = {**me, "name": "api", "kind": "api", "query": None, "state": "running" if is_ready else "starting", "restarts": 0}
    return {"supervisor": me, "ready": is_ready, "processes": [process], "queries": {}}
