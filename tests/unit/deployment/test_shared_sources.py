"""A version that begins with what the one in charge keeps: what is refused, where it reads, whose sources run and stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.model.frames import Anchor, LogId
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.claims import LogClaims, Trim
from deployment.evolution import (
    EARLIEST,
    Evolution,
    claimed,
    evolve,
    let_go,
    resolve_start,
    roll_back,
    settle,
    state_of,
)
from deployment.joined_sources import SourceIndex
from deployment.layout import layout_of
from deployment.query_record import QueryRecord, SharedSources, read_query_record, with_bucket
from deployment.shared_sources import STATE, first_rows, must_carry_states, newest, refuse_other_logs
from deployment.watched_query import WatchedQuery
from reconcile.events import InstanceId
from services.kafka.topics import query_topics
from services.stack.children import query_children
from sunion.tape import BEGINNING
from tests.unit.deployment.test_evolution import CAUGHT_UP, NOW, OTHER, SECOND, SPEC, WIDER, report, step, taken_over

SITES = ("a",)
ROWS = ({"jfk/0": 7}, {"jfk": NOW - 5 * SECOND})


def first(**changes: Any) -> QueryRecord:
    query = load_query({**SPEC, **changes})
    return QueryRecord("q", with_bucket(query, None).dump(), 4)


def claiming(**changes: Any) -> QueryRecord:
    record = first()
    return evolve(record, with_bucket(load_query({**OTHER, **changes}), record.query), STATE)


def stream(**changes: Any) -> dict[str, Any]:
    return {"streams": {"jfk": {**SPEC["streams"]["jfk"], **changes}}}


UNBOUNDED = {"operators": {"each": {"distinct": "jfk", "on": ["carrier"]}}, "output": "each"}


@pytest.mark.parametrize(
    ("running", "new", "field"),
    [
        ({}, stream(late="clamp"), "streams.jfk.late"),
        ({}, stream(topic="flights.other"), "streams.jfk.topic"),
        ({}, {"streams": {**SPEC["streams"], "lga": SPEC["streams"]["jfk"]}, "operators": {
            "some": {"union": ["jfk", "lga"]}, "each": WIDER}}, "streams.lga"),
        ({"streams": {**SPEC["streams"], "lga": SPEC["streams"]["jfk"]}, "operators": {
            "some": {"union": ["jfk", "lga"]}, "each": WIDER}}, {}, "streams.lga"),
        ({}, {"shards": 2}, "streams.jfk"),
        ({}, {"tuning": {"bucket": "100ms", "history": "1h"}}, "tuning.history"),
        ({}, {"tuning": {"bucket": "200ms"}}, "tuning.bucket"),
        ({}, {"delay_threshold": "500ms"}, "delay_threshold"),
        ({}, {"operators": {}, "output": "jfk"}, "output"),
    ],
)  # fmt: skip
def test_a_version_that_could_not_read_the_logs_as_they_are_is_refused_by_the_first_difference(
    running: dict[str, Any], new: dict[str, Any], field: str
) -> None:
    before = first(**running).query
    with pytest.raises(UserError) as refused:
        refuse_other_logs(before, with_bucket(load_query({**OTHER, **new}), before))
    assert (refused.value.field, "--from earliest" in refused.value.fix) == (field, True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"operators": {"each": {"aggregate": "jfk", "window": {"tumbling": "1h"}, "compute": {"n": "count(*)"}}}},
        {"delay_threshold": "10s", "replicas": 2, "engine": "spark", "reconcile": "undo_redo", "policy": "delay/delay"},
    ],
)
def test_other_operators_replicas_engines_and_policies_are_not(changes: dict[str, Any]) -> None:
    refuse_other_logs(first().query, with_bucket(load_query({**OTHER, **changes}), first().query))


def test_all_rows_ever_are_there_where_a_lone_replica_keeps_them() -> None:
    lone = first(**UNBOUNDED).query
    assert not must_carry_states(lone, with_bucket(load_query({**OTHER, **UNBOUNDED, "engine": "spark"}), lone))
    assert not must_carry_states(first().query, first(**OTHER).query), "windows depend on rows that are kept"


def distinct(**others: Any) -> dict[str, Any]:
    """Two replicas of a query whose state depends on all rows ever, with other operators beside."""
    operators = {"each": {"distinct": "jfk", "on": ["carrier"]}, **others}
    return {"operators": operators, "output": list(operators)[-1], "replicas": 2}


KEPT = distinct(few={"filter": "each", "where": "delay > 5"})
SHOWN = {"map": "each", "select": {"carrier": "carrier"}}


@pytest.mark.parametrize(
    ("running", "new", "field"),
    [
        ({}, distinct(), "operators.each"),
        (KEPT, distinct(each={"distinct": "jfk", "on": ["delay"]}), "operators.each"),
        (KEPT, {"operators": {"some": SPEC["operators"]["some"], "each": {"distinct": "some", "on": ["carrier"]}},
                "output": "each", "replicas": 2}, "operators.each"),
        (KEPT, distinct(top={"top": "each", "k": 3, "order_by": "delay", "window": {"tumbling": "1s"}}), "operators.top"),
        (KEPT, {**KEPT, "replicas": 1}, "replicas"),
        (KEPT, {**KEPT, "fragments": {"f": {"operators": ["each"]}, "g": {"operators": ["few"]}}}, "fragments.f"),
    ],
)  # fmt: skip
def test_a_state_of_all_rows_ever_is_handed_on_to_the_same_operators_alone(
    running: dict[str, Any], new: dict[str, Any], field: str
) -> None:
    before = first(**running)
    with pytest.raises(UserError) as refused:
        evolve(before, with_bucket(load_query({**SPEC, **new}), before.query), STATE)
    assert (refused.value.field, "--from earliest" in refused.value.fix) == (field, True)


def test_a_version_with_the_same_states_begins_with_checkpoints_and_takes_over_from_their_time_on() -> None:
    before = first(**KEPT)
    record = evolve(before, with_bucket(load_query({**SPEC, **distinct(shown=SHOWN), "engine": "spark"}), before.query), STATE)
    assert record.beside is not None and record.beside.shared == SharedSources(1, EARLIEST, states={})
    states = {"main/0": ("main.r1.0/carried", 7)}
    placed = claimed(record, {"jfk/0": 9}, {"jfk": NOW + 30 * SECOND}, states)
    assert read_query_record(b"q", placed.to_json()) == ("q", placed)
    waiting, why = step(placed, report())
    assert waiting is None and "1970-01-01T00:17:10" in why
    assert step(claimed(record, {"jfk/0": 9}, {"jfk": NOW}, states), report())[0] is not None


def test_it_begins_with_the_rows_that_the_last_anchors_need() -> None:
    made = plan(load_query({**SPEC, "shards": 2}))

    def anchor(needs: int, **inputs: int) -> Anchor:
        return Anchor(needs + SECOND, needs, (), tuple((key.replace("_", "/"), id_) for key, id_ in inputs.items()))

    one, other = anchor(NOW, jfk_0=40), anchor(NOW + SECOND, jfk_1=90)
    assert first_rows(made, {("main", 0): one, ("main", 1): other}) == ({"jfk/0": 40, "jfk/1": 90}, {"jfk": NOW + SECOND})
    nothing = first_rows(made, {("main", 0): one, ("main", 1): None})
    assert nothing == ({"jfk/0": 40, "jfk/1": 0}, {"jfk": NOW}), "what has no anchor has acknowledged nothing"
    assert newest([None, one, anchor(NOW - SECOND, jfk_0=30)]) is one, "trims may follow the one that needs the least"
    assert newest([None]) is None


def test_two_fragments_that_read_one_log_both_have_their_rows() -> None:
    operators = {
        "some": {"filter": "jfk", "where": "carrier = 'UA'"},
        "few": {"filter": "jfk", "where": "carrier = 'AA'"},
        "both": {"union": ["some", "few"]},
    }
    fragments = {"x": {"operators": ["some"]}, "y": {"operators": ["few"]}, "z": {"operators": ["both"]}}
    made = plan(load_query({**SPEC, "operators": operators, "output": "both", "fragments": fragments}))
    anchors = {
        ("x", 0): Anchor(NOW, NOW, (), (("jfk/0", 8),)),
        ("y", 0): Anchor(NOW + SECOND, NOW + SECOND, (), (("jfk/0", 9),)),
        ("z", 0): Anchor(NOW, NOW, (), (("some/0", 1), ("few/0", 1))),
    }
    assert first_rows(made, anchors) == ({"jfk/0": 8}, {"jfk": NOW + SECOND})


def test_the_record_names_the_sources_before_it_says_where_the_version_begins() -> None:
    record = claiming()
    assert state_of(record) == "claiming" and record.beside is not None
    assert record.beside.shared == SharedSources(1, EARLIEST)
    assert read_query_record(b"q", record.to_json()) == ("q", record)
    assert not [child.name for child in query_children(record, SITES, SITES) if "q-2" in child.name], "nothing of it runs yet"
    waiting, why = step(record, report())
    assert waiting is None and "version 1 keeps" in why
    placed = claimed(record, *ROWS)
    assert (state_of(placed), placed.revision) == ("building", record.revision + 1)
    assert claimed(placed, {"jfk/0": 9}, {"jfk": NOW}) is placed, "it stays what it is, for all replicas"
    assert read_query_record(b"q", placed.to_json()) == ("q", placed)
    given_up = roll_back(record)
    assert state_of(given_up) == "leaving" and let_go(given_up).beside is None
    assert claimed(given_up, *ROWS) is given_up


def test_it_takes_over_at_a_time_from_which_its_windows_have_all_rows() -> None:
    hour = {"aggregate": "some", "window": {"tumbling": "1h"}, "by": ["carrier"], "compute": {"n": "count(*)"}}
    longer = claimed(claiming(operators={**SPEC["operators"], "each": hour}), *ROWS)
    waiting, why = step(longer, report())
    assert waiting is None and "depend on rows from before 1970-01-01T00:16:35" in why
    same = claimed(claiming(), *ROWS)
    assert Evolution().next(same, ["s"], {"s": report()}, CAUGHT_UP) is not None


def test_sources_run_once_restart_for_no_takeover_and_stay_with_the_version_that_reads_them() -> None:
    placed = claimed(claiming(delay_threshold="4s"), *ROWS)

    def sources(record: QueryRecord) -> list[tuple[str, str]]:
        found = [child for child in query_children(record, SITES, SITES) if child.kind == "source"]
        return [(child.name, child.revision) for child in found]

    before = sources(first())
    done = taken_over(placed)
    alone = let_go(settle(done))
    assert [name for name, _ in before] == ["source.q.jfk"]
    assert sources(placed) == sources(done) == sources(alone) == before
    back = taken_over(roll_back(done))
    assert sources(back) == before and sources(let_go(settle(back))) == before
    for record, threshold in ((placed, "3s"), (done, "3s"), (alone, "4s")):
        serving = SourceIndex([record]).record_of("q", "jfk")
        assert serving is not None and (serving.name, serving.inner, serving.start) == ("q", "q", "earliest")
        assert serving.spec["delay_threshold"] == threshold, "the shortest that a reader has"
    assert SourceIndex([alone]).record_of("q-2", "jfk") is None
    again = evolve(alone, with_bucket(load_query(SPEC), alone.query), STATE)
    assert again.beside is not None and again.beside.shared == SharedSources(1, EARLIEST)
    apart = evolve(alone, load_query(SPEC), EARLIEST)
    assert [name for name, _ in sources(apart)] == ["source.q.jfk", "source.q-3.jfk"]


def test_its_layout_has_the_logs_of_the_sources() -> None:
    [running, beside] = claimed(claiming(), *ROWS).runs()
    own, other = layout_of(running, SITES), layout_of(beside, SITES)
    log = LogId("jfk", "", 0)
    assert (own.topic_of(log), other.topic_of(log)) == ("q.log.jfk", "q.log.jfk")
    assert other.topic_of(LogId("each", "r0", 0)) == "q-2.log.each.r0"
    assert {topic.name for topic in query_topics(other)["a"]} == {
        *("q.log.jfk", "q.control"),
        *("q-2.control", "q-2.log.each.r0", "q.dlq"),
    }


def test_at_two_sites_each_source_runs_where_its_stream_is_and_stays_there_with_its_log() -> None:
    """Replicas of both versions are at both sites, and read the logs of both."""
    sites = ("a", "b")
    streams = {**SPEC["streams"], "lga": {**SPEC["streams"]["jfk"], "topic": "flights.lga", "site": "b"}}
    query = {**SPEC, "streams": streams, "replicas": 2}
    operators = {"some": {"union": ["jfk", "lga"]}, "each": WIDER}
    counted = {"operators": {**operators, "each": SPEC["operators"]["each"]}, "streams": streams, "replicas": 2}
    before = first(**counted)
    record = evolve(before, with_bucket(load_query({**query, "operators": operators}), before.query), STATE)
    placed = claimed(record, {"jfk/0": 7, "lga/0": 3}, {"jfk": NOW, "lga": NOW})
    alone = let_go(settle(taken_over(placed)))

    def names(record: QueryRecord, site: str) -> set[str]:
        return {child.name for child in query_children(record, sites, [site])}

    assert names(placed, "b") == {"source.q.lga", "node.q.r1", "node.q-2.r1", "egress.q.b"}
    assert names(alone, "b") == {"source.q.lga", "node.q-2.r1", "egress.q.b"}
    assert names(alone, "a") == {"source.q.jfk", "node.q-2.r0", "egress.q.a"}
    layout = layout_of(alone.runs()[0], sites)
    assert {(log.key, layout.site_of(log), layout.topic_of(log)) for log in layout.logs_of_sources} == {
        ("jfk/0", "a", "q.log.jfk"),
        ("lga/0", "b", "q.log.lga"),
    }
    for replica in ("r0", "r1"):
        assert set(layout.input_logs(InstanceId("main", replica, 0))) == {"jfk/0", "lga/0"}
    made = {site: {topic.name for topic in topics} for site, topics in query_topics(layout).items()}
    assert made == {
        "a": {"q.log.jfk", "q.control", "q-2.control", "q-2.log.each.r0", "q.dlq"},
        "b": {"q.log.lga", "q.control", "q-2.control", "q-2.log.each.r1", "q.dlq"},
    }


def test_nothing_is_trimmed_that_the_other_version_may_read() -> None:
    [running, beside] = claiming().runs()
    old, new = WatchedQuery(running, SITES, 0), WatchedQuery(beside, SITES, 0)
    reader = InstanceId("main", "r0", 0)

    def needs(of: WatchedQuery) -> dict[str, int]:
        return {key: first_id for (_, key), first_id in of.needs_of_sources().items()}

    old.claims.acknowledge(reader, [("jfk/0", 20)], 0)
    assert not [effect for effect in old.tick(SECOND, needs(new)) if isinstance(effect, Trim)]
    new.claims.acknowledge(reader, [("jfk/0", 12), ("each/0", 3)], SECOND)
    assert Trim({"jfk/0": 12}) in old.tick(2 * SECOND, needs(new))
    assert Trim({"jfk/0": 12}) in new.tick(2 * SECOND, needs(old))
    assert old.needs_of_sources() == {("q", "jfk/0"): 20}


def test_what_another_version_needs_limits_repeated_trims_too() -> None:
    claims, reader = LogClaims(0), InstanceId("main", "r0", 0)
    claims.expect({"jfk/0": [reader]}, 600 * SECOND, 0)
    claims.acknowledge(reader, [("jfk/0", 9)], 0)
    assert claims.tick(SECOND) == [Trim({"jfk/0": 9})]
    found = [each for at in range(2, 40) for each in claims.tick(at * SECOND, others={"jfk/0": 4})]
    assert found == [Trim({"jfk/0": 4})]


def test_state_is_a_place_to_begin_at_and_a_start_on_a_stack_alone() -> None:
    assert resolve_start("state", NOW) == "state"
    assert BEGINNING < NOW and replace(first(), paused=True).is_placed
