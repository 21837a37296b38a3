"""Which roles have rows at present."""

from __future__ import annotations

from deployment.row_counts import RowCounts


def test_a_role_has_rows_while_its_count_rises() -> None:
    counts = RowCounts()
    source, egress = {"process": "source.q.s", "kind": "source"}, {"process": "egress.q.a", "kind": "egress"}
    for rows in (5, 6):
        counts.see({**source, "rows": rows})
        counts.see({**egress, "new_rows": rows})
    assert counts.is_rising("source.q.s") and counts.is_rising("egress.q.a")
    counts.see({**source, "rows": 6})
    assert not counts.is_rising("source.q.s") and counts.is_rising("egress.q.a")
    counts.forget("egress.q.a")
    assert not counts.is_rising("egress.q.a")


def test_the_first_count_and_that_of_a_new_incarnation_say_nothing() -> None:
    counts, status = RowCounts(), {"process": "source.q.s", "kind": "source"}
    counts.see({**status, "rows": 5})
    assert not counts.is_rising("source.q.s")
    counts.see({**status, "rows": 6})
    counts.see({**status, "rows": 1})
    assert not counts.is_rising("source.q.s")


def test_what_counts_no_rows_has_none() -> None:
    counts = RowCounts()
    for rows in (5, 6):
        counts.see({"process": "node.q.r0", "kind": "node", "rows": rows})
        counts.see({"process": "source.q.s", "kind": "source", "rows": str(rows)})
        counts.see({"process": "source.q.s"})
    assert not counts.is_rising("node.q.r0") and not counts.is_rising("source.q.s")
