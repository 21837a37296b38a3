"""How much of a worker's load roles are, by what they say of themselves."""

from __future__ import annotations

from deployment.role_weights import MEASURED_FOR_US, STATE_BYTES, RoleWeights


def source(rows: int, name: str = "s") -> dict[str, object]:
    return {"kind": "source", "process": f"source.q.{name}", "query": "q", "rows": rows}


def node(*sizes: int) -> dict[str, object]:
    return {"kind": "node", "process": "node.q.r0", "query": "q", "instances": [{"checkpoint_bytes": size} for size in sizes]}


def after(weights: RoleWeights, number: int, rows: int, name: str = "s") -> int:
    return weights.see(source(rows, name), number * MEASURED_FOR_US)


def test_a_source_counts_by_its_rows_over_time() -> None:
    weights = RoleWeights()
    assert after(weights, 0, 1_000_000) == 1, "what it had read before says nothing of its rate"
    assert weights.see(source(1_500_000), MEASURED_FOR_US // 2) == 1, "it is measured for longer"
    assert after(weights, 1, 1_300_000) == 11


def test_a_weight_stays_until_twice_as_much_or_half_is_measured() -> None:
    weights = RoleWeights()
    after(weights, 0, 0)
    found = [after(weights, 1, 300_000), after(weights, 2, 750_000), after(weights, 3, 870_000), after(weights, 4, 870_000)]
    assert found == [11, 11, 5, 1]


def test_a_source_that_began_again_counts_from_there() -> None:
    weights = RoleWeights()
    after(weights, 0, 900_000)
    assert after(weights, 1, 10) == 1 and after(weights, 2, 300_010) == 11


def test_a_replica_counts_by_the_rows_of_all_sources_of_its_query_and_by_its_state() -> None:
    weights = RoleWeights()
    assert weights.see(node(0, 10), 0) == 1
    assert weights.see(node(2 * STATE_BYTES, STATE_BYTES), 0) == 4
    for name in ("s", "t"):
        after(weights, 0, 0, name)
        after(weights, 1, 1_500_000, name)
    assert weights.see(node(2 * STATE_BYTES, 2 * STATE_BYTES), 0) == 15
    assert weights.see(node(0), 0) == 15, "not yet half"
    assert weights.see({**node(0), "process": "node.p.r0", "query": "p"}, 0) == 1


def test_an_egress_counts_by_its_results() -> None:
    weights = RoleWeights()
    said = {"kind": "egress", "process": "egress.q.a", "query": "q"}
    assert weights.see({**said, "new_rows": 0}, 0) == 1
    assert weights.see({**said, "new_rows": 60_000}, MEASURED_FOR_US) == 3


def test_a_role_that_is_no_more_leaves_nothing_behind() -> None:
    weights = RoleWeights()
    after(weights, 0, 0)
    after(weights, 1, 1_500_000)
    weights.forget("source.q.s")
    assert weights.see(node(0), 0) == 1, "nothing is left of the rows of its query"
    assert after(weights, 2, 3_000_000) == 1
