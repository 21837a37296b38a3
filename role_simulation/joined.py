"""A world in which workers have joined their sites, and a supervisor decides what each of them runs: the placer, the record
that it writes, and the workers that obey it are production code, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from kafka import TopicPartition

from deployment.placement import HOSTED
from deployment.placement_record import read_placement
from deployment.query_record import QueryRecord
from deployment.supervision import Child
from role_simulation.world import PlacedRole, Program, RoleWorld
from services.hosting.process import EXIT_STOPPED, StopSignal
from services.kafka.topics import PLACEMENT
from services.stack.process_runner import ProcessRunner
from services.stack.supervisor import Supervisor
from services.worker.joined import JoinedWorker


class JoinedWorld(RoleWorld):
    """As `RoleWorld`, and who runs what is not fixed. The monitor is no process of the supervisor's."""

    def __init__(self, seed: int, records: Sequence[QueryRecord], workers: int, sites: Sequence[str]) -> None:
        super().__init__(seed, records, workers, sites)
        self.supervisor = self.program("supervisor", ())
        self.programs.append(self.supervisor)
        self.home.on_append.append(self._look_at_placement)

    def roles_at(self, worker: int) -> tuple[PlacedRole, ...]:
        return ()

    @property
    def targets(self) -> list[Program]:
        return [*self.workers, self.supervisor]

    def also_replaced(self) -> dict[str, Any]:
        draw_id = lambda: SimpleNamespace(hex=f"{self.rng.getrandbits(64):016x}")  # noqa: E731
        return {
            "services.stack.supervisor.make_clusters": lambda settings, client_id: self.clusters(),
            "services.stack.supervisor.ProcessRunner": _Runner,
            "services.stack.supervisor.ensure": lambda cluster, specs: None,
            "services.stack.supervisor.write_state": lambda data, state: None,
            "services.worker.joined.machine_id": lambda: self.current_program().name,
            "services.worker.joined.uuid": SimpleNamespace(uuid4=draw_id),
        }

    def main_of(self, program: Program) -> Callable[[], None]:
        if program is self.monitor:
            return super().main_of(program)
        is_supervisor = program.name.startswith(self.supervisor.name)
        return lambda: self._run_service(program, self._supervise if is_supervisor else self._join)

    def _run_service(self, program: Program, serve: Callable[[Program], int]) -> None:
        """What a process does, from its clock to its end: whoever has started it starts it again."""
        self.begin_clock()
        self.ends[program.name, serve(program)] += 1
        self.kill(program)

    def _supervise(self, program: Program) -> int:
        supervisor = Supervisor(self.settings, self.settings.site_names, {}, allow_chaos=False, workers=None)
        return supervisor.serve(StopSignal())

    def _join(self, program: Program) -> int:
        name = program.name.partition("'")[0]
        site = self.settings.site_names[-1 if name == self.workers[-1].name else 0]
        return _Worker(self, site, name).serve(StopSignal())

    def _look_at_placement(self, place: TopicPartition, offset: int) -> None:
        """No worker may be given two replicas of a query (R22)."""
        if place.topic != PLACEMENT:
            return
        record = self.home.partitions[place].records[offset]
        placed = read_placement(record.value, (record.key or b"").decode())
        held = [(of.worker, role.rpartition(".")[0]) for role, of in placed.roles.items() if role.startswith("node.")]
        if len(set(held)) < len(held):
            self.problems.append(f"record {placed.number} of {PLACEMENT} gives a worker two replicas: {placed.roles}")


class _Worker(JoinedWorker):
    """Says how its roles end."""

    def __init__(self, world: JoinedWorld, site: str, name: str) -> None:
        super().__init__(world.settings, site, name)
        self._world = world

    def _note_end(self, name: str, code: int) -> None:
        if code != EXIT_STOPPED:
            self._world.ends[name.partition(".")[0], code] += 1
        super()._note_end(name, code)


class _Runner(ProcessRunner):
    """Starts roles in workers, and no process: the monitor runs by itself."""

    def start(self, child: Child) -> None:
        if child.kind in HOSTED:
            super().start(child)

    def pid(self, name: str) -> int | None:
        return os.getpid()
