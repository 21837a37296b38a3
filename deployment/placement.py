"""Which worker of a machine runs a role of a query. Pure.

A role stays where it is until its worker ends: a move costs a restart, and so one replica for a moment. Two replicas of a query
never share a worker, because then one failure would end both. Replicas of two versions of a query share one only if they
must: a version that is built has a backlog, and would keep the interpreter from the one whose results clients wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deployment.query_record import public_name
from deployment.supervision import Child

HOSTED = ("source", "node", "egress")
"""The kinds of roles that workers run."""


def choose_worker(child: Child, workers: Mapping[str, Collection[Child]]) -> str | None:
    """Among those that run no other replica of the role's query, and for a replica those that run none of another version,
    if there are such, the worker with the fewest roles; of several, one that runs nothing of the query, then the first by name.
    None if each runs another replica.

    workers: by name, the roles that each runs.
    """

    def load(name: str) -> tuple[int, int, int, str]:
        versions = sum(_is_of_another_version(child, other) for other in workers[name])
        return versions, len(workers[name]), sum(other.query == child.query for other in workers[name]), name

    return min((name for name, roles in workers.items() if not _has_partner(child, roles)), key=load, default=None)


def _is_of_another_version(child: Child, other: Child) -> bool:
    if other.kind != "node" or child.kind != "node" or other.query is None or child.query is None:
        return False
    return other.query != child.query and public_name(other.query) == public_name(child.query)


def _has_partner(child: Child, roles: Collection[Child]) -> bool:
    return any(other.kind == child.kind == "node" and other.query == child.query for other in roles)
