"""Which worker of a machine runs a role of a query. Pure.

A role stays where it is until its worker ends: a move costs a restart, and so one replica for a moment. Two replicas of a query
never share a worker, because then one failure would end both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deployment.supervision import Child

HOSTED = ("source", "node", "egress")
"""The kinds of roles that workers run."""


def choose_worker(child: Child, workers: Mapping[str, Collection[Child]]) -> str | None:
    """The worker with the fewest roles among those that run no other replica of the role's query; of several, one that runs
    nothing of the query, then the first by name. None if there is no such worker.

    workers: by name, the roles that each runs.
    """

    def load(name: str) -> tuple[int, int, str]:
        return len(workers[name]), sum(other.query == child.query for other in workers[name]), name

    return min((name for name, roles in workers.items() if not _has_partner(child, roles)), key=load, default=None)


def _has_partner(child: Child, roles: Collection[Child]) -> bool:
    return any(other.kind == child.kind == "node" and other.query == child.query for other in roles)
