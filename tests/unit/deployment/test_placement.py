"""The choice of a worker for a role."""

from __future__ import annotations

from collections import Counter

from deployment.placement import Places, choose_worker
from deployment.supervision import Child


def role(kind: str, query: str, part: str) -> Child:
    return Child(f"{kind}.{query}.{part}", kind, query, ())


def test_the_worker_with_the_fewest_roles_is_chosen() -> None:
    workers = {"a": [role("source", "p", "s"), role("node", "p", "r0")], "b": [role("source", "p", "t")]}
    assert choose_worker(role("source", "q", "s"), workers) == "b"


def test_two_replicas_of_a_query_never_share_a_worker() -> None:
    workers = {"a": [role("node", "q", "r0")], "b": [role("source", "p", name) for name in "stuv"]}
    assert choose_worker(role("node", "q", "r1"), workers) == "b"
    assert choose_worker(role("node", "q", "r1"), {"a": workers["a"]}) is None


def test_replicas_of_two_versions_of_a_query_share_a_worker_only_if_they_must() -> None:
    workers = {"a": [role("node", "q", "r0")], "b": [role("source", "p", name) for name in "stuv"]}
    assert choose_worker(role("node", "q-2", "r0"), workers) == "b"
    assert choose_worker(role("node", "p", "r0"), workers) == "a"
    assert choose_worker(role("node", "q-2", "r0"), {**workers, "b": [role("node", "q", "r1")]}) == "a"


def test_a_replica_may_run_beside_its_sources_and_beside_replicas_of_others() -> None:
    workers = {"a": [role("source", "q", "s"), role("node", "p", "r0"), role("egress", "q", "a")]}
    assert choose_worker(role("node", "q", "r0"), workers) == "a"


def test_of_equally_loaded_workers_one_without_the_query_is_chosen() -> None:
    workers = {"a": [role("source", "q", "s")], "b": [role("source", "p", "s")], "c": [role("source", "p", "t")]}
    assert choose_worker(role("egress", "q", "a"), workers) == "b"


def test_roles_of_each_kind_are_spread_over_workers_that_are_equally_loaded() -> None:
    """An egress takes more than a source, and both count for one."""
    workers: dict[str, list[Child]] = {"a": [], "b": []}
    for query in "pqrs":
        for kind, part in (("source", "s"), ("node", "r0"), ("node", "r1"), ("egress", "a")):
            chosen = choose_worker(added := role(kind, query, part), workers)
            assert chosen is not None
            workers[chosen].append(added)
    of_kind = {name: Counter(child.kind for child in roles) for name, roles in workers.items()}
    assert of_kind["a"] == of_kind["b"] == {"source": 2, "node": 4, "egress": 2}


def test_without_workers_there_is_no_choice() -> None:
    assert choose_worker(role("source", "q", "s"), {}) is None


def test_a_replica_goes_to_another_machine_if_there_is_one_whatever_the_load() -> None:
    places = Places()
    for worker, machine in {"a": "m", "b": "m", "c": "n"}.items():
        places.add_worker(worker, machine)
    places.add(role("node", "q", "r0"), "a")
    for stream in "stuv":
        places.add(role("source", "p", stream), "c")
    assert places.choose(role("node", "q", "r1")) == "c"
    assert places.choose(role("source", "q", "s")) == "b"
    places.add(role("node", "q", "r1"), "c")
    assert places.choose(role("node", "q", "r2")) == "b"


def test_a_heavy_role_counts_for_several() -> None:
    places = Places()
    for worker in "ab":
        places.add_worker(worker, worker)
    places.add(role("source", "p", "s"), "a", 3)
    places.add(role("source", "p", "t"), "b")
    places.add(role("source", "p", "u"), "b")
    assert places.choose(role("source", "q", "s")) == "b"
    places.remove(role("source", "p", "s"), "a", 3)
    assert places.choose(role("source", "q", "s")) == "a"
