"""A deployed query whose roles run in workers that have joined its site, where a supervisor places them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from bench.deployment import DeployedProcess, Deployment
from deployment.placement import HOSTED
from deployment.placement_record import worker_process
from deployment.supervision import Child
from services.kafka.statuses import Statuses

SUPERVISOR = ("services.stack.supervisor", "--workers", "joined")


class JoinedDeployment(Deployment):
    """No role runs before the SUPERVISOR has begun, and workers have joined."""

    def __init__(self, root: Path, query: Mapping[str, Any]) -> None:
        super().__init__(root, query, without=(*HOSTED, "monitor"), has_links=False)

    def __enter__(self) -> Self:
        super().__enter__()
        self.followed = Statuses(self.clusters["a"])
        return self

    def __exit__(self, *_: object) -> None:
        self.followed.close()
        super().__exit__()

    def statuses(self) -> dict[str, dict[str, Any]]:
        return self.followed.newest()

    def begin(self, name: str, *command: str, **settings: str) -> DeployedProcess:
        """A Python module as a process. name: among the services; settings: more of its environment."""
        self.add(Child(name, name.partition(".")[0], None, (sys.executable, "-m", *command)), **settings)
        return self.services[name]

    def join(self, name: str, called: str = "", **settings: str) -> DeployedProcess:
        """A worker; called: its name among the services, by default that of its status."""
        command = "boreal", "worker", "--site", "a", "--name", name
        return self.begin(called or worker_process("a", name), *command, **settings)

    def places(self) -> dict[str, str]:
        """The worker of each role, as the supervisor says."""
        entries: Any = self.statuses().get("supervisor", {"processes": ()})["processes"]
        return {entry["name"]: entry["worker"] for entry in entries if entry["query"] and entry["state"] == "running"}
