"""Which worker runs a role of a query. Pure.

A role stays where it is until its worker ends: a move costs a restart, and so one replica for a moment. Two replicas of a query
never share a worker, because then one failure would end both; where there is a choice, they do not share a machine either.
Replicas of two versions of a query share a worker only if they must: a version that is built has a backlog, and would keep the
interpreter from the one whose results clients wait for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from deployment.query_record import public_name
from deployment.supervision import Child

HOSTED = ("source", "node", "egress")
"""The kinds of roles that workers run."""


class Places:
    """Workers, and the roles that each runs. Choices are the same whatever the order in which workers and roles were added."""

    def __init__(self) -> None:
        self._machines: dict[str, str] = {}
        self._load: dict[str, int] = {}
        self._of_query: dict[str, Counter[str]] = {}
        self._of_kind: dict[str, Counter[str]] = {}
        # The replicas in a worker, or on a machine, by the name of their version, and by that of the query.
        self._replicas: dict[str, Counter[str]] = {}
        self._versions: dict[str, Counter[str]] = {}
        self._on_machine: dict[str, Counter[str]] = defaultdict(Counter)
        self._avoided: dict[str, str] = {}

    def avoid(self, role: str, worker: str) -> None:
        """Choose this worker for a role only if no other one may run it."""
        self._avoided[role] = worker

    def add_worker(self, name: str, machine: str) -> None:
        """A worker without roles. machine: where it is."""
        self._machines[name] = machine
        self._load[name] = 0
        self._of_query[name], self._of_kind[name] = Counter(), Counter()
        self._replicas[name], self._versions[name] = Counter(), Counter()

    def add(self, child: Child, worker: str, weight: int = 1) -> None:
        """A role runs in a worker. weight: its part of the worker's load."""
        self._count(child, worker, 1, weight)

    def remove(self, child: Child, worker: str, weight: int = 1) -> None:
        """A role runs there no more. weight: as it was added."""
        self._count(child, worker, -1, -weight)

    def load(self, worker: str) -> int:
        """The sum of the weights of its roles."""
        return self._load[worker]

    def choose(self, child: Child) -> str | None:
        """Of the workers that run no other replica of the role's query, the first by these: it is not avoided; for a replica,
        no other one on its machine, and no replica of another version; then the least load; nothing of the query; the fewest
        roles of its kind, since those with the same weight may differ in what they take by kind; the name. None if each runs
        another replica."""
        return min(
            (name for name in self._machines if self.allows(child, name)),
            key=lambda name: (
                self._avoided.get(child.name) == name,
                self.shares_machine(child, name),
                self._other_versions(child, name),
                self._load[name],
                self._of_query[name][str(child.query)],
                self._of_kind[name][child.kind],
                name,
            ),
            default=None,
        )

    def are_apart(self) -> bool:
        """Whether no two replicas of a query are on one machine."""
        return all(count <= 1 for replicas in self._on_machine.values() for count in replicas.values())

    def allows(self, child: Child, worker: str) -> bool:
        """Whether the role may run there: no other replica of its query does."""
        return child.kind != "node" or not self._replicas[worker][str(child.query)]

    def shares_machine(self, child: Child, worker: str) -> bool:
        """Whether another replica of the role's query would run on the same machine. The role itself is not placed."""
        return child.kind == "node" and self._on_machine[self._machines[worker]][str(child.query)] > 0

    def _other_versions(self, child: Child, worker: str) -> int:
        if child.kind != "node":
            return 0
        return self._versions[worker][public_name(str(child.query))] - self._replicas[worker][str(child.query)]

    def _count(self, child: Child, worker: str, by: int, weight: int) -> None:
        query = str(child.query)
        self._load[worker] += weight
        self._of_query[worker][query] += by
        self._of_kind[worker][child.kind] += by
        if child.kind == "node":
            self._replicas[worker][query] += by
            self._versions[worker][public_name(query)] += by
            self._on_machine[self._machines[worker]][query] += by


def choose_worker(child: Child, workers: Mapping[str, Collection[Child]]) -> str | None:
    """The worker of this machine that a role starts in; None if each runs another replica of its query. workers: by name, the
    roles that each runs."""
    places = Places()
    for name, roles in workers.items():
        # They are on one machine, and so none is better than another for that.
        places.add_worker(name, name)
        for role in roles:
            places.add(role, name)
    return places.choose(child)
