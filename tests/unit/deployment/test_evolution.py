"""How a query gets another version: the record's states, what is refused, and what the monitor does next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from boreal.query.spec import load_query
from deployment.evolution import (
    LIVE_US,
    LOOK_US,
    MARGIN_US,
    EgressReport,
    Evolution,
    VersionProgress,
    as_of,
    evolve,
    let_go,
    progress_of,
    resolve_start,
    roll_back,
    schemas,
    settle,
    shown,
    state_of,
)
from deployment.layout import make_layout
from deployment.query_record import QueryRecord, inner_name, public_name, read_query_record
from formats.json_text import moment
from services.stack.children import query_children
from sunion.tape import BEGINNING

SECOND = 1_000_000
SPEC: dict[str, Any] = {
    "name": "q",
    "streams": {"jfk": {"topic": "flights.jfk", "time": "at", "schema": {"carrier": "string", "delay": "int"}}},
    "operators": {
        "some": {"filter": "jfk", "where": "carrier = 'UA'"},
        "each": {"aggregate": "some", "window": {"tumbling": "1s"}, "by": ["carrier"], "compute": {"n": "count(*)"}},
    },
    "output": "each",
    "delay_threshold": "3s",
    "engine": "native",
}
WIDER = {**SPEC["operators"]["each"], "compute": {"n": "count(*)", "most": "max(delay)"}}
OTHER = {**SPEC, "operators": {**SPEC["operators"], "each": WIDER}}
NOW = 1_000 * SECOND
CAUGHT_UP = VersionProgress("STABLE", NOW)


def first(**changes: Any) -> QueryRecord:
    return QueryRecord("q", load_query({**SPEC, **changes}).dump(), 4)


def building(**changes: Any) -> QueryRecord:
    return evolve(first(), load_query({**OTHER, **changes}), "earliest")


def report(
    version: int = 1, through: int | None = NOW, state: str = "STABLE", about: tuple[int, str] | None = None
) -> EgressReport:
    """about: the time of the takeover that it prepares, and what it says of it."""
    return EgressReport(version, state, through, {"to": 2, "at_us": about[0], "state": about[1]} if about else None)


def step(
    record: QueryRecord, *egresses: EgressReport, beside: VersionProgress | None = CAUGHT_UP
) -> tuple[QueryRecord | None, str]:
    """What the monitor makes of a record, and what it waits for; as many sites as there are reports."""
    sites = [f"s{number}" for number in range(len(egresses))]
    evolution = Evolution()
    return evolution.next(record, sites, dict(zip(sites, egresses, strict=True)), beside), evolution.waits_for


def taken_over(record: QueryRecord | None = None) -> QueryRecord:
    proposed, _ = step(record or building(), report(version=(record or building()).version))
    assert proposed is not None and proposed.takeover is not None
    done, _ = step(proposed, report(version=proposed.takeover.to))
    assert done is not None
    return done


def test_a_version_is_built_beside_the_old_one_takes_over_and_the_old_one_is_let_go() -> None:
    record = building()
    assert (state_of(record), record.version, record.revision, record.versions) == ("building", 1, 5, 2)
    proposed, _ = step(record, report())
    assert proposed is not None and proposed.takeover is not None
    assert (state_of(proposed), proposed.takeover.to, proposed.takeover.agreed) == ("taking_over", 2, True)
    assert proposed.takeover.at == NOW + MARGIN_US and proposed.spec == record.spec
    assert step(proposed, report(about=(proposed.takeover.at, "promised")))[0] is None
    done, _ = step(proposed, report(version=2))
    assert done is not None and done.beside is not None and record.beside is not None
    assert (state_of(done), done.version, done.since) == ("taken_over", 2, proposed.takeover.at)
    assert (done.spec, done.beside.spec) == (record.beside.spec, record.spec)
    leaving = settle(done)
    assert (state_of(leaving), [run.name for run in leaving.runs()]) == ("leaving", ["q-2"])
    alone = let_go(leaving)
    assert (state_of(alone), alone.version, shown(alone)) == (None, 2, None)
    again = evolve(alone, load_query(SPEC), "earliest")
    assert [run.name for run in again.runs()] == ["q-2", "q-3"], "no version gets the logs of another one"


def test_a_rollback_goes_the_same_way_back_and_one_before_the_takeover_gives_the_new_version_up() -> None:
    back = roll_back(taken_over())
    assert state_of(back) == "rolling_back" and roll_back(back) is back
    rolled = taken_over(back)
    assert (state_of(rolled), rolled.version, rolled.spec) == ("rolled_back", 1, first().spec)
    assert rolled.since is not None, "its rows are not of one piece"
    assert taken_over(roll_back(rolled)).version == 2
    given_up = roll_back(building())
    assert (state_of(given_up), given_up.version) == ("leaving", 1)
    assert roll_back(given_up) is given_up and step(given_up, report())[0] is None


def test_all_sites_end_at_the_same_time_and_only_when_all_have_promised() -> None:
    proposed, _ = step(building(), report(), report(through=NOW + SECOND // 2))
    assert proposed is not None and proposed.takeover is not None
    at = proposed.takeover.at
    assert (at, proposed.takeover.agreed) == (NOW + SECOND // 2 + MARGIN_US, False)
    promised, missed = report(about=(at, "promised")), report(through=NOW + 9 * SECOND, about=(at, "missed"))
    assert step(proposed, promised, report())[0] is None, "the other one has not said anything"
    agreed, _ = step(proposed, promised, promised)
    assert agreed is not None and agreed.takeover == replace(proposed.takeover, agreed=True)
    assert step(agreed, report(version=2), promised)[0] is None
    later, _ = step(proposed, promised, missed)
    assert later is not None and later.takeover is not None
    assert (later.takeover.at, later.takeover.agreed) == (NOW + 9 * SECOND + 2 * MARGIN_US, False)


def test_a_time_that_is_missed_is_put_off_once_however_long_it_takes_to_write_the_next() -> None:
    evolution, record = Evolution(), building()
    proposed = evolution.next(record, ["s"], {"s": report()}, CAUGHT_UP)
    for margin_us in (2 * MARGIN_US, 4 * MARGIN_US):
        assert proposed is not None and proposed.takeover is not None
        record, missed = proposed, report(about=(proposed.takeover.at, "missed"))
        for _ in range(10):
            proposed = evolution.next(record, ["s"], {"s": missed}, CAUGHT_UP)
            assert proposed is not None and proposed.takeover is not None
            assert proposed.takeover.at == NOW + margin_us


def test_a_time_that_not_all_sites_promise_is_taken_back_before_the_others_have_waited_for_long() -> None:
    evolution, sites = Evolution(), ["a", "b"]
    proposed = evolution.next(building(), sites, {"a": report(), "b": report()}, CAUGHT_UP)
    assert proposed is not None and proposed.takeover is not None
    promised, looks = report(about=(proposed.takeover.at, "promised")), MARGIN_US // LOOK_US
    for _ in range(looks):
        assert evolution.next(proposed, sites, {"a": promised, "b": report()}, CAUGHT_UP) is None
    later = evolution.next(proposed, sites, {"a": promised, "b": report()}, CAUGHT_UP)
    assert later is not None and later.takeover == replace(proposed.takeover, at=NOW + 2 * MARGIN_US)
    for _ in range(2 * looks):
        assert evolution.next(later, sites, {"a": report(about=(later.takeover.at, "promised"))}, CAUGHT_UP) is None
    back = evolution.next(later, sites, {"a": report(about=(later.takeover.at, "promised"))}, CAUGHT_UP)
    assert back is not None and (state_of(back), back.takeover, back.revision) == ("building", None, later.revision + 1)
    assert evolution.next(back, sites, {"a": report()}, CAUGHT_UP) is None
    assert evolution.waits_for == "the egress of b, which is not heard"
    stale = report(about=(later.takeover.at, "promised"))
    assert evolution.next(back, sites, {"a": stale, "b": report()}, CAUGHT_UP) is None, "the same time could be chosen again"
    assert evolution.waits_for == "the egress of a, which has not heard that a time was taken back"
    again = evolution.next(back, sites, {"a": report(), "b": report()}, CAUGHT_UP)
    assert again is not None and state_of(again) == "taking_over"
    agreed = replace(later, takeover=replace(later.takeover, agreed=True))
    for _ in range(9 * looks):
        assert evolution.next(agreed, sites, {"a": report(version=2)}, CAUGHT_UP) is None, "a may have ended there already"


@pytest.mark.parametrize(
    ("egress", "beside", "waits_for"),
    [
        (report(state="UP_FAILURE"), VersionProgress("STABLE", NOW), "the egress of s0, which is not stable"),
        (report(through=None), VersionProgress("STABLE", NOW), "results"),
        (report(through=1 << 62), VersionProgress("STABLE", NOW), "streams that go on: they have ended"),
        (report(), None, "replicas of version 2, which are not heard"),
        (report(), VersionProgress("RECOVERING", NOW), "version 2, which is RECOVERING"),
        (report(), VersionProgress("RECOVERING", NOW, ("spark.q-2.r0",)), "spark.q-2.r0 to start"),
        (report(), VersionProgress("STABLE", NOW - 4 * SECOND), "version 2, which is 4.0 s of event time behind"),
        (report(), VersionProgress("STABLE", BEGINNING), "the first results of version 2"),
    ],
)
def test_nothing_takes_over_before_it_has_caught_up_and_both_are_stable(
    egress: EgressReport, beside: VersionProgress | None, waits_for: str
) -> None:
    assert step(building(), egress, beside=beside) == (None, waits_for)


def waits_while(behind_us: int, **changes: Any) -> bool:
    """Whether a version that is so far behind has to catch up first."""
    return step(building(**changes), report(), beside=VersionProgress("STABLE", NOW - behind_us))[0] is None


def test_a_version_takes_over_when_clients_wait_for_it_for_a_quarter_of_x_at_most() -> None:
    plan = make_layout(load_query(OTHER), ("a",)).plan
    intervals = plan.bucket_us + plan.boundary_interval_us
    assert not waits_while(750_000 + intervals) and waits_while(750_000 + intervals + 1)
    assert waits_while(750_000 + intervals, delay_threshold="2s"), "the new version has a shorter X"
    disorderly = {"jfk": {**SPEC["streams"]["jfk"], "disorder": "9s"}}
    assert not waits_while(750_000 + intervals + 9 * SECOND, streams=disorderly), "its rows wait for so long by themselves"


def test_positions_that_were_heard_at_different_moments_are_compared_as_of_one() -> None:
    heard_at = NOW - 900_000
    assert as_of(NOW, heard_at - 100_000, heard_at) == NOW - 100_000
    assert as_of(NOW, heard_at - LIVE_US, heard_at) == NOW - LIVE_US
    assert as_of(NOW, heard_at - LIVE_US - 1, heard_at) == heard_at - LIVE_US - 1, "old rows are not replayed at a known pace"
    assert as_of(NOW, INFINITY, heard_at) == INFINITY


def test_a_site_that_is_not_heard_is_waited_for() -> None:
    evolution = Evolution()
    assert evolution.next(building(), ["a", "b"], {"a": report()}, VersionProgress("STABLE", NOW)) is None
    assert evolution.waits_for == "the egress of b, which is not heard"


def test_what_cannot_keep_rows_stable_or_makes_no_sense_is_refused_and_changes_nothing() -> None:
    new = load_query(OTHER)
    with pytest.raises(UserError, match=r"building.*two versions at most.*boreal query rollback q"):
        evolve(building(), new, "earliest")
    with pytest.raises(UserError, match="boreal query settle q"):
        evolve(taken_over(), load_query(SPEC), "earliest")
    with pytest.raises(UserError, match="boreal query resume q"):
        evolve(replace(first(), paused=True), new, "earliest")
    with pytest.raises(UserError, match="runs as the file says"):
        evolve(first(), load_query(SPEC), "earliest")
    with pytest.raises(UserError, match=r"latest.*boreal query set q latest=true"):
        evolve(first(), load_query({**OTHER, "latest": True}), "earliest")
    with pytest.raises(UserError, match=r"latest.*boreal query set q latest=false"):
        evolve(first(latest=True), new, "earliest")
    with pytest.raises(UserError, match=r"debezium.*boreal query set q debezium=true"):
        evolve(first(), load_query({**OTHER, "debezium": True}), "earliest")
    with pytest.raises(UserError, match=r"records.*boreal query set q records=null"):
        evolve(first(records="avro"), new, "earliest")
    with pytest.raises(UserError, match=r"""records.*boreal query set q 'records=\{"format":"avro".*\}'"""):
        evolve(first(records="protobuf"), load_query({**OTHER, "records": "avro"}), "earliest")
    other_key = {**WIDER, "by": ["carrier", "delay"], "compute": {"n": "count(*)"}}
    other_type = {"jfk": {**SPEC["streams"]["jfk"], "schema": {"carrier": "int", "delay": "int"}}}
    for topic in ("latest", "debezium"):
        with pytest.raises(UserError, match=rf"{topic}.*rows of carrier \(string\), and .* carrier \(string\), delay \(int\)"):
            operators = {**SPEC["operators"], "each": other_key}
            evolve(first(**{topic: True}), load_query({**SPEC, topic: True, "operators": operators}), "earliest")
        with pytest.raises(UserError, match=rf"{topic}.*carrier \(string\), and would get those of carrier \(int\)"):
            operators = {**SPEC["operators"], "some": {"filter": "jfk", "where": "carrier = 1"}}
            changed = {**SPEC, topic: True, "streams": other_type, "operators": operators}
            evolve(first(**{topic: True}), load_query(changed), "earliest")
    with pytest.raises(UserError, match="one version only"):
        roll_back(first())
    with pytest.raises(UserError, match="has one version only"):
        settle(first())
    with pytest.raises(UserError, match=r"is building with version 2 .*boreal query rollback q"):
        settle(building())
    proposed, _ = step(building(), report())
    assert proposed is not None
    with pytest.raises(UserError, match="cannot be stopped"):
        roll_back(proposed)
    with pytest.raises(UserError, match="no place to begin at"):
        resolve_start("yesterday", NOW)
    assert resolve_start("latest", NOW) == "1970-01-01T00:16:40.000000Z"
    assert resolve_start("2026-11-23T14:00:00Z", NOW) == "2026-11-23T14:00:00.000000Z"


def test_the_columns_of_a_version_are_known_for_as_long_as_clients_topics_may_hold_its_rows() -> None:
    """Rows may still wait in q.out for a schema registry when their version is let go."""
    narrow = Schema.of({"carrier": "string", "n": "int"}, windowed=True)
    wide = Schema.of({**narrow.types, "most": "int"}, windowed=True)
    assert schemas(first()) == {1: narrow} and not first().outputs
    assert schemas(building()) == schemas(taken_over()) == {1: narrow, 2: wide}
    settled = let_go(settle(taken_over()))
    assert schemas(settled) == {1: narrow, 2: wide} and read_query_record(b"q", settled.to_json()) == ("q", settled)
    assert schemas(let_go(settle(taken_over(roll_back(taken_over()))))) == {1: narrow, 2: wide}
    given_up = let_go(roll_back(building()))
    assert schemas(given_up) == {1: narrow}, "no client has had a row of it"
    assert list(schemas(evolve(given_up, load_query(OTHER), "earliest"))) == [1, 3]


def test_a_query_with_topics_for_other_readers_evolves_as_any_other() -> None:
    for topics in ({"records": "avro"}, {"debezium": True}, {"latest": True}):
        assert state_of(evolve(first(**topics), load_query({**OTHER, **topics}), "earliest")) == "building"


def test_a_record_says_all_of_it_and_one_of_a_query_that_never_evolved_says_none_of_it() -> None:
    for record in (first(), building(), taken_over(), settle(taken_over()), roll_back(taken_over())):
        assert read_query_record(b"q", record.to_json()) == ("q", record)
    assert b"version" not in first().to_json() and b"beside" not in first().to_json()


def test_versions_have_names_that_no_query_has() -> None:
    assert [inner_name("q", 1), inner_name("q", 2), public_name("q-2"), public_name("q")] == ["q", "q-2", "q", "q"]
    with pytest.raises(UserError):
        load_query({**SPEC, "name": "q-2"})


def test_the_processes_of_the_other_version_come_and_go_and_no_other_one_restarts() -> None:
    """The egress goes from one version to the other by itself."""

    def processes(record: QueryRecord) -> dict[str, tuple[str, str, int]]:
        return {child.name: (child.revision, child.turn, child.version) for child in query_children(record, ("a",), ("a",))}

    alone, beside, done = processes(first()), processes(building()), processes(taken_over())
    assert set(alone) == {"source.q.jfk", "node.q.r0", "egress.q.a"}
    assert set(beside) - set(alone) == {"source.q-2.jfk", "node.q-2.r0"}
    assert {name: beside[name] for name in alone} == alone
    of_versions = set(beside) - {"egress.q.a"}
    assert {name: done[name][:2] for name in of_versions} == {name: beside[name][:2] for name in of_versions}
    assert (beside["egress.q.a"][2], done["egress.q.a"][2]) == (1, 2)
    assert set(processes(settle(taken_over()))) == {"source.q-2.jfk", "node.q-2.r0", "egress.q.a"}


SLIDING = {**WIDER, "window": {"sliding": "10s", "every": "5s"}}


@pytest.mark.parametrize(
    ("start_us", "complete_us"),
    [(NOW, NOW + 5 * SECOND), (NOW + 1, NOW + 10 * SECOND), (NOW - 4 * SECOND, NOW + 5 * SECOND), (NOW - 5 * SECOND, NOW)],
)
def test_a_version_that_lacks_rows_before_a_time_takes_over_when_no_window_depends_on_them(
    start_us: int, complete_us: int
) -> None:
    new = load_query({**OTHER, "operators": {**OTHER["operators"], "each": SLIDING}})
    record = evolve(first(), new, moment(start_us))
    # A row has the time of its window's end: from then on all windows begin at the start or later.
    through = complete_us - MARGIN_US
    before, waits_for = step(record, report(through=through - new.intervals.bucket), beside=VersionProgress("STABLE", through))
    assert before is None and f"depend on rows from before {moment(start_us)}" in waits_for
    proposed, _ = step(record, report(through=through), beside=VersionProgress("STABLE", through))
    assert proposed is not None and proposed.takeover is not None and proposed.takeover.at == complete_us


def test_a_version_that_depends_on_all_rows_ever_reads_from_the_earliest_on() -> None:
    ever = {**OTHER, "operators": {"each": {"distinct": "jfk", "on": ["carrier"]}}}
    with pytest.raises(UserError, match=r"--from: .*depend on all rows ever.*1970-01-01T00:16:40.*write --from earliest"):
        evolve(first(), load_query(ever), moment(NOW))
    assert state_of(evolve(first(), load_query(ever), "earliest")) == "building"


def test_the_progress_of_a_version_is_that_of_its_slowest_shard_at_its_best_replica() -> None:
    plan = make_layout(load_query({**SPEC, "shards": 2, "replicas": 2}), ("a",)).plan

    def entry(replica: str, shard: int, position: int, state: str = "STABLE") -> dict[str, Any]:
        return {"fragment": "main", "replica": replica, "shard": shard, "position": position, "state": state}

    of_one = [entry("r0", 0, 9), entry("r1", 0, 11)]
    assert progress_of(plan, of_one) is None
    assert progress_of(plan, [*of_one, entry("r0", 1, 10), entry("r1", 1, 99, "RECOVERING")]) == VersionProgress("STABLE", 10)
    assert progress_of(plan, [*of_one, entry("r1", 1, 99, "RECOVERING")]) == VersionProgress("RECOVERING", 11)
