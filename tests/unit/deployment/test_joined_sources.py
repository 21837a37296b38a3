"""Streams that several queries read from the same source: who joins, who reads, what may change, and what the monitor does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.evolution import EARLIEST, evolve
from deployment.joined_sources import (
    SourceIndex,
    SourceReaders,
    changed,
    join,
    refuse_change_for_others,
    settled,
)
from deployment.layout import layout_of
from deployment.query_record import JoinedSources, QueryRecord, read_query_record, with_bucket
from deployment.shared_sources import STATE
from deployment.stream_claims import ASK_US, CLAIM_WITHIN_US, AskToHold, LookForRows, StreamClaims
from deployment.watched_query import WatchedQuery
from services.kafka.topics import query_topics
from services.stack.children import query_children, with_sources

SITES = ("a",)
SCHEMA = {"carrier": "string", "delay": "double"}
STREAM: dict[str, Any] = {"time": "at", "time_unit": "ms", "schema": SCHEMA, "disorder": "1s"}
COUNTED = {"late": {"aggregate": "jfk", "window": {"tumbling": "1m"}, "by": ["carrier"], "compute": {"n": "count(*)"}}}


def streams(*names: str, **fields: Any) -> dict[str, Any]:
    return {name: {**STREAM, "topic": f"flights.{name}", **fields} for name in names}


def spec(name: str, reads: dict[str, Any], **fields: Any) -> dict[str, Any]:
    operators: dict[str, Any] = {"some": {"union": list(reads)}} if len(reads) > 1 else {}
    source = "some" if operators else next(iter(reads))
    operators["late"] = {"filter": source, "where": "delay > 10"}
    return {
        "name": name,
        "delay_threshold": "3s",
        "engine": "native",
        "streams": reads,
        "operators": operators,
        "output": "late",
        **fields,
    }


def record(name: str, *reads: str, **fields: Any) -> QueryRecord:
    query = load_query(spec(name, fields.pop("reads", None) or streams(*reads), **fields))
    return QueryRecord(name, with_bucket(query, None).dump(), 1)


def among(*records: QueryRecord) -> dict[str, QueryRecord]:
    return {each.name: each for each in records}


def claimed(joining: QueryRecord, *others: QueryRecord) -> QueryRecord:
    assert joining.joined is not None
    return settled(joining, joining.joined.of, among(joining, *others))


def test_a_query_joins_the_sources_of_what_another_reads_in_the_same_way() -> None:
    first = record("first", "jfk", "lga")
    joining = join(record("second", "jfk", "ewr"), among(first))
    assert joining.joined == JoinedSources({"jfk": "first"}) and not joining.is_placed
    layout = layout_of(joining, SITES)
    assert {layout.source_role(stream) for stream in ("jfk", "ewr")} == {"source.first.jfk", "source.second.ewr"}
    topics = {topic.name for topic in query_topics(layout)["a"]}
    assert {"first.log.jfk", "second.log.ewr", "first.control", "second.control"} <= topics
    assert not topics & {"second.log.jfk", "first.log.ewr", "first.log.lga"}
    third = join(record("third", "jfk", "ewr"), among(first, joining))
    assert third.joined == JoinedSources({"jfk": "first", "ewr": "second"}), "a source is joined by its own name"


@pytest.mark.parametrize(
    "fields",
    [
        {"reads": streams("jfk", disorder="2s")},
        {"reads": streams("jfk", late="clamp")},
        {"reads": streams("jfk", topic="flights.other")},
        {"delay_threshold": "500ms"},
        {"tuning": {"history": "1h"}},
        {"shards": 2, "operators": COUNTED},
    ],
)
def test_what_is_read_in_another_way_has_two_sources(fields: dict[str, Any]) -> None:
    other = record("second", "jfk", **fields)
    assert join(other, among(record("first", "jfk"))) == other


def test_sources_of_a_paused_query_or_of_one_that_reads_from_a_time_on_are_not_joined() -> None:
    first, second = record("first", "jfk"), record("second", "jfk")
    for other in (replace(first, paused=True), replace(first, start="2026-01-01T00:00:00Z"), replace(first, leaves=True)):
        assert join(second, among(other)).joined is None


def test_a_record_keeps_what_it_has_joined() -> None:
    joining = replace(join(record("second", "jfk"), among(record("first", "jfk"))), leaves=True)
    for each in (joining, settled(joining, ["jfk"], among(joining))):
        assert read_query_record(b"second", each.to_json()) == ("second", each)


def test_nothing_runs_before_its_claims_are_settled_and_then_each_source_runs_once() -> None:
    first = record("first", "jfk")
    joining = join(record("second", "jfk"), among(first))
    assert query_children(joining, SITES, SITES, SourceIndex([first, joining])) == []
    placed = claimed(joining, first)
    assert placed.is_placed and placed.revision == 2
    sources = SourceIndex([first, placed])
    found = [{c.name: c.revision for c in query_children(each, SITES, SITES, sources)} for each in (first, placed)]
    assert found[0].keys() & found[1].keys() == {"source.first.jfk"}
    assert found[0]["source.first.jfk"] == found[1]["source.first.jfk"], "nothing of it restarts if the first query goes"
    assert [child.revision for child in query_children(placed, SITES, SITES) if child.kind == "source"] == [
        found[0]["source.first.jfk"]
    ]


def test_what_a_log_no_longer_has_from_its_first_row_on_is_read_by_a_source_of_its_own() -> None:
    first = record("first", "jfk", "lga")
    joining = join(record("second", "jfk", "lga"), among(first))
    some, none = settled(joining, ["lga"], among(first, joining)), settled(joining, [], among(first, joining))
    assert some.joined == JoinedSources({"lga": "first"}, claimed=True) and some.sources_of("jfk") == "second"
    assert none.joined is None and none.is_placed
    assert settled(none, ["jfk"], among(first)) == none, "it is settled"


def test_a_source_runs_by_the_shortest_x_and_by_whoever_is_left() -> None:
    first = record("first", "jfk")
    second = claimed(join(record("second", "jfk", delay_threshold="2s"), among(first)), first)
    both = SourceIndex([first, second]).record_of("first", "jfk")
    assert both is not None and (both.public, both.inner, both.spec["delay_threshold"]) == ("first", "first", "2s")
    left = SourceIndex([second]).record_of("first", "jfk")
    assert left is not None and (left.public, left.inner, left.start, left.joined) == ("second", "first", EARLIEST, None)
    assert SourceIndex([first, second]).record_of("second", "jfk") is None
    assert SourceIndex([first, second]).readers_of("first", "jfk") == ["first", "second"]
    assert SourceIndex([replace(first, paused=True, leaves=True), second]).readers_of("first", "jfk") == ["second"]


def test_a_source_hears_who_reads_it() -> None:
    first = record("first", "jfk")
    second = claimed(join(record("second", "jfk"), among(first)), first)
    readers = SourceReaders("first", "jfk", "first")
    assert readers.take("other", record("other", "jfk")) is None and readers.names == ("first",)
    assert readers.take("first", first) is not None
    found = readers.take("second", second)
    assert found is not None and list(readers.names) == ["first", "second"]
    assert readers.take("second", second) is None, "nothing has changed"
    assert readers.take("first", replace(first, paused=True, leaves=True)) is not None and list(readers.names) == ["second"]
    assert readers.take("second", None) is None and list(readers.names) == ["second"], "its end is the supervisor's"


def test_a_name_that_sources_still_have_is_not_given_to_others() -> None:
    first = record("first", "jfk", "lga")
    second = claimed(join(record("second", "jfk"), among(first)), first)
    again = join(record("first", "jfk", "ewr"), among(second))
    assert again.joined == JoinedSources({"jfk": "first", "ewr": "first-2"}) and again.versions == 2
    apart = join(record("first", reads=streams("jfk", disorder="5s")), among(second))
    assert apart.joined == JoinedSources({"jfk": "first-2"}, claimed=True) and apart.is_placed
    alone = settled(again, ["ewr"], among(second))
    assert alone.joined == JoinedSources({"jfk": "first-2", "ewr": "first-2"}, claimed=True)
    assert {"first-2.log.jfk", "first-2.control", "first.out"} <= {t.name for t in query_topics(layout_of(apart, SITES))["a"]}
    evolved = evolve(apart, load_query(spec("first", streams("jfk"))), EARLIEST)
    assert evolved.beside is not None and evolved.beside.version == 3


def test_a_version_that_begins_with_the_state_reads_what_the_one_before_has_joined() -> None:
    first = record("first", "jfk")
    joining = join(record("second", "jfk"), among(first))
    wider = load_query({**joining.spec, "operators": {"late": {"filter": "jfk", "where": "delay > 5"}}})
    with pytest.raises(UserError, match="has not begun"):
        evolve(joining, wider, STATE)
    evolved = evolve(claimed(joining, first), wider, STATE)
    assert [run.sources_of("jfk") for run in evolved.runs()] == ["first", "first"]
    apart = evolve(claimed(joining, first), wider, EARLIEST)
    assert [run.sources_of("jfk") for run in apart.runs()] == ["first", "second-2"]


def test_a_change_of_what_a_source_does_is_refused_while_others_read_it() -> None:
    first = record("first", "jfk")
    second = claimed(join(record("second", "jfk"), among(first)), first)
    records = among(first, second)
    for one, other in ((first, "second"), (second, "first")):
        clamped, longer = {"reads": streams("jfk", late="clamp")}, {"tuning": {"history": "1h"}}
        for fields, path in ((clamped, "streams.jfk.late"), (longer, "tuning.history")):
            wanted = load_query(record(one.name, "jfk", **fields).spec)
            with pytest.raises(UserError, match=f"{path}.*would change for {other} too"):
                refuse_change_for_others(one, wanted, records)
            refuse_change_for_others(one, wanted, among(one))
        refuse_change_for_others(one, one.query.changed(delay_threshold="5s", replicas=3), records)


def test_of_those_that_share_with_one_that_changes_only_the_sources_are_chosen_again() -> None:
    first, apart = record("first", "jfk"), record("apart", reads=streams("jfk", disorder="5s"))
    second = claimed(join(record("second", "jfk"), among(first)), first)
    before = among(first, second, apart)
    assert changed(before, before) == []
    assert changed(before, {**before, "second": replace(second, revision=9)}) == ["second"]
    assert changed(before, among(second, apart)) == [] and changed(among(first), among(first, apart)) == ["apart"]
    sooner = replace(second, spec={**second.spec, "delay_threshold": "1s"})
    for after in (among(first, sooner, apart), among(second, apart), among(first, apart)):
        sources = SourceIndex(after.values())
        for one in before.values():
            if after.get(one.name) == one:
                known = query_children(one, SITES, SITES, SourceIndex(before.values()))
                assert with_sources(known, sources) == query_children(one, SITES, SITES, sources)


def test_a_source_that_nobody_is_to_read_any_more_stays_while_its_reader_cannot_change() -> None:
    """The record says another stream, with something that this version of boreal does not accept: the old processes go on."""
    first = record("first", "jfk")
    known = query_children(first, SITES, SITES)
    assert with_sources(known, SourceIndex([record("first", "lga")])) == known


def test_no_row_is_trimmed_that_another_query_needs() -> None:
    first = record("first", "jfk")
    second = claimed(join(record("second", "jfk"), among(first)), first)
    needs = [WatchedQuery(each.run(1), SITES, 0).needs_of_sources() for each in (first, second)]
    assert needs[0] == needs[1] == {("first", "jfk/0"): 0}


# What the monitor does


def begun(*others: QueryRecord, reads: tuple[str, ...] = ("jfk",)) -> tuple[StreamClaims, QueryRecord]:
    joining = join(record("second", *reads), among(*others))
    claims = StreamClaims()
    claims.change("second", joining, layout_of(joining, SITES), 0)
    return claims, joining


def test_sources_are_asked_to_hold_their_rows_before_the_logs_are_looked_into() -> None:
    first = record("first", "jfk", "lga")
    claims, joining = begun(first, reads=("jfk", "lga"))
    records = among(first, joining)
    [asked] = claims.tick(records, 0)
    assert isinstance(asked, AskToHold) and (asked.sources, sorted(asked.keys)) == ("first", ["jfk/0", "lga/0"])
    assert claims.tick(records, ASK_US - 1) == []
    assert claims.tick(records, ASK_US) == [asked], "the message may be lost"
    claims.hear("source.first.jfk", ["older", asked.claim])
    claims.hear("source.first.lga", ["older"])
    assert claims.waits_for("second") == ["source.first.lga"]
    assert claims.tick(records, 2 * ASK_US) == [asked]
    claims.hear("source.first.lga", [asked.claim])
    assert claims.tick(records, 2 * ASK_US + 1) == [LookForRows(joining, ("jfk", "lga"))]
    assert claims.tick(records, 3 * ASK_US) == [], "once"
    claims.unanswered("second")
    assert claims.tick(records, 4 * ASK_US) == [LookForRows(joining, ("jfk", "lga"))]
    claims.change("second", settled(joining, ["jfk"], records), layout_of(joining, SITES), 5 * ASK_US)
    assert claims.tick(records, 6 * ASK_US) == [] and claims.waits_for("second") == []


def test_a_source_that_does_not_answer_is_not_waited_for() -> None:
    first = record("first", "jfk", "lga")
    claims, joining = begun(first, reads=("jfk", "lga"))
    records = among(first, joining)
    [asked] = claims.tick(records, 0)
    assert isinstance(asked, AskToHold)
    claims.hear("source.first.lga", [asked.claim])
    assert claims.tick(records, CLAIM_WITHIN_US) == [LookForRows(joining, ("lga",))]


def test_the_rows_of_a_source_that_nobody_else_reads_any_more_are_there_unasked() -> None:
    """It does not run then, so that it cannot answer, and trims nothing."""
    first = record("first", "jfk")
    claims, joining = begun(first)
    assert len(claims.tick(among(first, joining), 0)) == 1
    assert claims.tick(among(joining), CLAIM_WITHIN_US) == [LookForRows(joining, ("jfk",))]


def test_what_a_source_says_of_an_earlier_claim_of_the_same_name_does_not_count() -> None:
    first = record("first", "jfk")
    claims, joining = begun(first)
    [asked] = claims.tick(among(first, joining), 0)
    assert isinstance(asked, AskToHold)
    claims.change("second", None, None, 1)
    claims.change("second", joining, layout_of(joining, SITES), 2)
    claims.hear("source.first.jfk", [asked.claim])
    [again] = claims.tick(among(first, joining), 3)
    assert isinstance(again, AskToHold) and again.claim != asked.claim


def test_rows_gather_in_a_source_only_where_all_who_read_it_allow_that() -> None:
    first = record("first", "jfk")
    second = claimed(join(record("second", "jfk"), among(first)), first)
    readers = SourceReaders("first", "jfk", "first")
    assert readers.may_gather, "it has heard of nobody"
    readers.take("first", first)
    readers.take("second", second)
    assert readers.may_gather
    sharded = record("second", "jfk", operators=COUNTED, shards=2)
    readers.take("second", replace(sharded, joined=second.joined))
    assert not readers.may_gather, "its egress reads from two instances"
    elsewhere = {**first.spec, "operators": {"late": {"use": "nobody:HasIt", "of": "jfk"}}}
    readers.take("second", replace(second, spec=elsewhere))
    assert not readers.may_gather, "nobody knows"
    readers.take("second", None)
    assert readers.may_gather
