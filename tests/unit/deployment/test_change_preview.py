"""What a changed file would change of the query that runs: each part, how it is taken, and what clients would notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import Query, load_query
from deployment.change_preview import ChangePreview, ColumnChange, PartChange, preview, refuse_other_structure
from deployment.evolution import evolve
from deployment.query_record import QueryRecord, with_bucket
from services.stack.children import query_children

SPEC: dict[str, Any] = {
    "name": "q",
    "streams": {
        name: {"topic": f"in.{name}", "time": "at", "schema": {"carrier": "string", "delay": "int"}} for name in ("jfk", "lga")
    },
    "operators": {
        "all": {"union": ["jfk", "lga"]},
        "each": {"aggregate": "all", "window": {"tumbling": "10m"}, "by": ["carrier"], "compute": {"n": "count(*)"}},
    },
    "output": "each",
    "delay_threshold": "3s",
    "engine": "native",
    "replicas": 2,
}
RUNNING = QueryRecord("q", with_bucket(load_query(SPEC), None).dump(), 4)


def changed(**fields: Any) -> Query:
    return load_query({**SPEC, **fields})


def computing(**compute: str) -> Query:
    return changed(operators={**SPEC["operators"], "each": {**SPEC["operators"]["each"], "compute": compute}})


def streams(**fields: Any) -> dict[str, Any]:
    return {**SPEC["streams"], "jfk": {**SPEC["streams"]["jfk"], **fields}}


def test_the_same_file_changes_nothing() -> None:
    found = preview(RUNNING, load_query(SPEC))
    assert (found.taken, found.parts, found.command, found.clients()) == ("nothing", (), None, [])


@pytest.mark.parametrize(
    ("fields", "part", "taken", "restarted"),
    [
        ({"delay_threshold": "9s"}, "delay_threshold", "at_once", set()),
        ({"slo": "99.9%/7d"}, "slo", "at_once", set()),
        ({"reconcile": "overlay_redo"}, "reconcile", "in_turn", {"node", "egress"}),
        ({"streams": streams(late="clamp")}, "streams.jfk.late", "sources", {"source"}),
        ({"tuning": {"memory": "1GB"}}, "tuning.memory", "restart", {"node", "egress"}),
        ({"tuning": {"history": "1h"}}, "tuning.history", "restart", {"source", "node", "egress"}),
        ({"latest": True}, "latest", "restart", {"node", "egress"}),
    ],
)
def test_what_needs_no_other_version_is_taken_as_the_processes_take_it(
    fields: dict[str, Any], part: str, taken: str, restarted: set[str]
) -> None:
    found = preview(RUNNING, changed(**fields))
    assert [(each.part, each.taken) for each in found.parts] == [(part, taken)]
    assert (found.taken, found.needs, found.command) == (taken, None, "boreal query apply FILE")

    def processes(record: QueryRecord) -> dict[str, tuple[str, str]]:
        return {child.name: (child.revision, child.turn) for child in query_children(record, ("a",), ("a",))}

    wanted = with_bucket(changed(**fields), RUNNING.query)
    before, after = processes(RUNNING), processes(replace(RUNNING, spec=wanted.dump()))
    assert {name.partition(".")[0] for name in before if before[name] != after[name]} == restarted
    revised = {name for name in before if before[name][0] != after[name][0]}
    assert bool(revised) == (taken in ("restart", "sources"))
    refuse_other_structure(RUNNING, changed(**fields))


def test_other_columns_are_said_to_clients_with_what_the_version_takes_and_the_command() -> None:
    found = preview(RUNNING, computing(most="max(delay)"), "2026-11-23T14:00:00.000000Z")
    assert found.parts == (
        PartChange("operators.each.compute.n", "count(*)", None, "evolution"),
        PartChange("operators.each.compute.most", None, "max(delay)", "evolution"),
    )
    assert found.columns == (ColumnChange("n", "int", None), ColumnChange("most", None, "int"))
    assert found.clients() == ["column n (int) goes", "column most (int) comes"]
    assert found.command == "boreal query apply FILE --evolve --from 2026-11-23T14:00:00.000000Z"
    assert found.needs is not None
    assert (found.needs.sources, found.needs.nodes, found.needs.jobs, found.needs.instances) == (2, 2, 0, 2)
    assert found.needs.history_us == 600_000_000, "a window of ten minutes"
    fields = found.fields()
    assert fields["needs"]["history_ms"] == 600_000 and fields["refused"] is None and fields["from"] == found.start


def test_a_type_a_key_and_what_no_client_notices() -> None:
    assert preview(RUNNING, computing(n="avg(delay)")).clients() == ["column n becomes double, and is int"]
    by_both = {**SPEC["operators"]["each"], "by": ["carrier", "delay"]}
    keyed = preview(RUNNING, changed(operators={**SPEC["operators"], "each": by_both}))
    assert keyed.keys == (("carrier",), ("carrier", "delay"))
    assert keyed.clients() == ["column delay (int) comes", "the key of rows is carrier, delay, and not carrier"]
    wider = {**SPEC["operators"]["each"], "window": {"tumbling": "1h"}}
    window = preview(RUNNING, changed(operators={**SPEC["operators"], "each": wider}))
    assert [each.part for each in window.parts] == ["operators.each.window.tumbling"]
    assert window.clients() == ["the columns stay; the values may be others"]
    assert window.needs is not None and window.needs.history_us == 3_600_000_000
    shards = preview(RUNNING, changed(shards=4))
    assert (shards.taken, shards.clients()) == ("evolution", ["the rows stay as they are"])
    assert shards.needs is not None and shards.needs.instances == 8


def test_an_operator_of_another_kind_is_one_change_and_state_without_an_end_needs_all_rows() -> None:
    once = {"distinct": "all", "on": ["carrier"]}
    found = preview(RUNNING, changed(operators={**SPEC["operators"], "each": once}))
    assert [each.part for each in found.parts] == ["operators.each"]
    assert found.needs is not None and found.needs.history_us is None
    assert any("results depend on all rows ever" in line for line in found.lines())
    late = preview(RUNNING, changed(operators={**SPEC["operators"], "each": once}), "2026-01-01T00:00:01.000000Z")
    assert "depend on all rows ever" in refused(late)


def test_a_version_that_reads_from_a_time_on_is_said_to_take_over_when_its_windows_are_whole() -> None:
    other = computing(most="max(delay)")
    [line] = [line for line in preview(RUNNING, other, "2026-01-01T00:00:01.000000Z").lines() if "take over at" in line]
    assert "2026-01-01T00:10:00.000000Z" in line, "windows of ten minutes: that of 00:00 lacks rows"
    assert not [line for line in preview(RUNNING, other).lines() if "take over at" in line]


def test_a_change_with_others_beside_it_is_an_evolution_as_a_whole_and_gets_a_bucket_of_its_own() -> None:
    found = preview(RUNNING, changed(shards=2, delay_threshold="400ms", tuning={"bucket": "20ms"}))
    taken = {each.part: each.taken for each in found.parts}
    assert taken == {"delay_threshold": "at_once", "shards": "evolution", "tuning.bucket": "restart"}
    assert found.taken == "evolution"
    short = changed(shards=2, delay_threshold="150ms")
    assert preview(RUNNING, short).refusal is None, "too short for the bucket that is kept, but not for one of its own"


def refused(found: ChangePreview) -> str:
    assert found.refusal is not None and found.command is None
    return str(found.refusal)


def test_why_nothing_evolves_now_is_said_too() -> None:
    other = computing(most="max(delay)")
    assert "boreal query resume q" in refused(preview(replace(RUNNING, paused=True), other))
    beside = evolve(RUNNING, load_query(other.dump()), "earliest")
    assert "boreal query rollback q" in refused(preview(beside, changed(shards=2)))


def test_apply_alone_is_refused_with_what_another_version_would_give() -> None:
    with pytest.raises(UserError) as told:
        refuse_other_structure(RUNNING, computing(most="max(delay)"))
    error = told.value
    assert (error.field, error.value) == ("operators.each.compute.n", None)
    assert "cannot change while it runs (nor can operators.each.compute.most)" in error.problem
    assert "column n (int) goes; column most (int) comes" in error.problem
    assert "--evolve" in error.fix and "boreal query validate FILE" in error.fix
    paused = replace(RUNNING, paused=True)
    with pytest.raises(UserError, match="boreal query resume q"):
        refuse_other_structure(paused, changed(shards=2))
