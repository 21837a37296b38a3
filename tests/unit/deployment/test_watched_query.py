"""What the monitor makes of what a query's processes say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.claims import Trim
from deployment.events import SERVED, RecordedEvent
from deployment.journal import JournalEntry
from deployment.query_record import QueryRecord
from deployment.status_fields import QUERY, SLO
from deployment.watched_query import WatchedQuery
from formats.control_messages import acknowledge_item, instance_of, message_item
from reconcile.events import LeaseEnd
from tests.described import assert_described

SECOND = 1_000_000
SPEC = {
    "name": "q",
    "streams": {
        "jfk": {"topic": "flights.jfk", "time": "at", "schema": {"carrier": "string"}},
        "lga": {"topic": "flights.lga", "time": "at", "schema": {"carrier": "string"}},
    },
    "operators": {"all": {"union": ["jfk", "lga"]}, "some": {"filter": "all", "where": "carrier = 'UA'"}},
    "output": "some",
    "delay_threshold": "3s",
    "replicas": 2,
    "tuning": {"retention": "60s"},
}
READERS = ["main.r0.0", "main.r1.0"]


def record(revision: int = 1, paused: bool = False, **changes: object) -> QueryRecord:
    return QueryRecord("q", load_query({**SPEC, **changes}).dump(), revision, paused)


def watched(sites: tuple[str, ...] = ("a",), **changes: Any) -> WatchedQuery:
    return WatchedQuery(record(**changes), sites, 0)


def node(replica: str, position: int = 0, state: str = "STABLE", **fields: object) -> dict[str, Any]:
    entry = {"fragment": "main", "replica": replica, "shard": 0, "state": state, "position": position, "alpha_x_ms": 2500.0}
    return {"process": f"node.q.{replica}", "instances": [{**entry, "missing": [], "since_ms": 5.0, **fields}]}


def source(stream: str, boundary: object = "2013-01-01T00:00:00.000000Z", state: str = "live") -> dict[str, Any]:
    facts = {"state": state, "last_boundary": boundary, "last_ingest_ms": 1.0, "rows": 7, "ahead": 2, "idle_partitions": [1]}
    return {"process": f"source.q.{stream}", "memory_bytes": 1_000, "cores": 0.25, **facts}


def egress(site: str = "a", state: str = "STABLE", stable: int = 5, since_ms: float | None = None) -> dict[str, Any]:
    return {
        "process": f"egress.q.{site}",
        "ready": True,
        "state": state,
        "delay_ms": {"p50": 1.0, "p99": 2.0, "max": 3.0},
        "violations": 1,
        "tentative": {"outstanding": 4 if since_ms else 0, "since_ms": since_ms, "cause": "c1" if since_ms else None},
        "counts": {"stable": stable, "tentative": 9, "undone": 5},
    }


def all_speak(query: WatchedQuery, now: int, position: int = 0) -> None:
    for status in (node("r0", position), node("r1", position), source("jfk", position), source("lga", position), egress()):
        query.take(status, now)


def entries(effects: list[Any]) -> list[tuple[str, str]]:
    return [(effect.who, effect.text) for effect in effects if isinstance(effect, JournalEntry)]


def test_the_status_has_the_shape_that_is_promised_whatever_is_known():
    query = watched()
    silent = query.status(0)
    all_speak(query, SECOND)
    spoken = query.status(SECOND)
    assert set(silent) == set(spoken)
    for status in (silent, spoken):
        assert set(status["delay_ms"]) == {"p50", "p99", "max"}
        assert set(status["tentative"]) == {"outstanding", "since", "cause"}
        assert set(status["counts"]) == {"stable", "tentative", "undone"}
        assert [entry["name"] for entry in status["inputs"]] == ["jfk", "lga"]
        assert [(r["fragment"], r["replica"], r["shard"], r["engine"]) for r in status["replicas"]] == [
            ("main", "r0", 0, "native"),
            ("main", "r1", 0, "native"),
        ]
    assert (silent["state"], silent["ready"], silent["alpha_x_ms"]) == ("STARTING", False, None)
    assert (spoken["state"], spoken["ready"], spoken["alpha_x_ms"], spoken["x_ms"]) == ("STABLE", True, 2500.0, 3000.0)
    assert (silent["tentative_share"], spoken["tentative_share"]) == (None, 9 / 14)
    assert silent["resources"] == {"memory_bytes": 0, "cores": 0}
    assert spoken["resources"] == {"memory_bytes": 2_000, "cores": 0.5}
    assert spoken["inputs"][0] == {
        "name": "jfk",
        "state": "live",
        "last_boundary": 0,
        "last_ingest_age_ms": 999.0,
        "rows": 7,
        "dlq": None,
        "dlq_per_minute": None,
        "last_refusal": None,
        "waits_for": None,
        "waits_since_ms": None,
        "lag_records": None,
        "lag_ms": None,
        "clamped": None,
        "ahead": 2,
        "coerced": None,
        "idle_partitions": [1],
        "spooled_bytes": None,
    }


def test_which_processes_of_a_query_are_frozen_is_what_supervisors_say_while_they_are_heard():
    query = watched()
    processes = [
        {"name": "node.q.r0", "query": query.record.name, "state": "frozen"},
        {"name": "node.q.r1", "query": query.record.name, "state": "running"},
        {"name": "node.other.r0", "query": "other", "state": "frozen"},
    ]
    query.see_supervisor({"process": "supervisor.a", "processes": processes}, 0)
    query.see_supervisor({"process": "supervisor.b", "processes": []}, SECOND)
    assert query.status(SECOND)["frozen"] == ["node.q.r0"]
    assert query.status(60 * SECOND)["frozen"] == []
    query.see_supervisor({"process": "supervisor.a", "processes": processes[1:]}, 2 * SECOND)
    assert query.status(2 * SECOND)["frozen"] == []


def kinds(effects: list[Any]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, RecordedEvent)]


def test_what_clients_were_given_is_counted_for_an_objective_and_goes_on_in_the_next_life():
    query = watched(slo="99%/7d")

    def say(rows: int, late: int, now: int, since_ms: float | None = None) -> list[RecordedEvent]:
        said = {**egress(since_ms=since_ms), "new_rows": rows, "violations": late}
        return [effect for effect in query.take(said, now) if isinstance(effect, RecordedEvent) and effect.kind == SERVED]

    assert say(100, 5, 0) == [] and query.status(0)["slo"]["results"]["share"] is None
    query.record_failures([])
    say(100, 5, SECOND)
    say(190, 5, 30 * SECOND)
    say(200, 15, 31 * SECOND, since_ms=31_000.0)
    found = say(210, 15, 61 * SECOND)
    [event] = found
    assert (event.at_ms, event.facts["on_time"], event.facts["late"]) == (60_000.0, 100, 10)
    assert event.facts["tentative_ms"] == 29_000.0
    told = query.status(61 * SECOND)["slo"]
    assert set(told) == set(SLO) and told["time"]["tentative_ms"] == 30_000.0
    later = watched(slo="99%/7d")
    later.record_failures(found)
    assert later.status(61 * SECOND)["slo"]["results"]["late"] == 10
    query.change(record(2, paused=True, slo="99%/7d"), 62 * SECOND)
    paused = [each for each in query.tick(62 * SECOND) if isinstance(each, RecordedEvent) and each.kind == SERVED]
    assert [each.facts["tentative_ms"] for each in paused] == [1_000.0]
    assert query.tick(63 * SECOND) == []
    query.change(record(3), 64 * SECOND)
    assert query.status(64 * SECOND)["slo"] is None


def test_what_was_counted_is_recorded_when_the_process_that_counts_ends_in_good_order():
    query = watched(slo="99%/7d")
    query.record_failures([])
    for rows, now in ((100, SECOND), (150, 20 * SECOND)):
        query.take({**egress(), "new_rows": rows, "violations": 0}, now)
    [event] = [effect for effect in query.end(30 * SECOND) if isinstance(effect, RecordedEvent)]
    assert (event.kind, event.at_ms, event.facts["on_time"]) == (SERVED, 30_000.0, 50)
    later = watched(slo="99%/7d")
    later.record_failures([event])
    assert later.status(31 * SECOND)["slo"]["results"]["on_time"] == 50
    assert query.end(31 * SECOND) == []


def test_failures_are_recorded_once_it_is_known_what_was_recorded_before():
    query = watched()
    all_speak(query, 0)
    assert kinds(query.take(node("r0", state="UP_FAILURE", since_ms=9.0), SECOND)) == []
    query.record_failures([])
    seen = query.take(node("r0", state="UP_FAILURE", since_ms=9.0, missing=["jfk"]), 2 * SECOND)
    [detected] = [effect for effect in seen if isinstance(effect, RecordedEvent)]
    assert (detected.kind, detected.at_ms, detected.facts["x_ms"]) == ("detected", 9.0, 3_000.0)
    assert kinds(query.take(node("r0", since_ms=1_500.0), 3 * SECOND)) == ["healed", "reconciled"]
    assert kinds(query.tick(4 * SECOND)) == ["over"]


def test_a_process_that_was_never_heard_is_silent_only_if_it_should_have_come_long_ago():
    query = watched()
    query.record_failures([])
    query.take(node("r0"), 0)
    assert kinds(query.tick(6 * SECOND)) == ["detected"], "r0 was heard, and is no more"
    query.take(node("r0"), 7 * SECOND)
    assert kinds(query.tick(60 * SECOND)) != []
    names = [effect.facts["instance"] for effect in query.tick(121 * SECOND) if isinstance(effect, RecordedEvent)]
    assert {"main.r1.0", "egress.a"} <= set(names)


def test_all_that_it_says_is_described():
    query = watched(engine="spark")
    for status in (query.status(0), *lived_through(query)):
        assert_described(status, QUERY, may_lack={"pid"})  # which the monitor adds


def lived_through(query: WatchedQuery) -> Iterator[dict[str, Any]]:
    """A status with clocks that are off, a journal and a job."""
    all_speak(query, 0)
    query.tick(0)
    query.take({**node("r0"), "clock_error_ms": 2_000.0}, 7 * SECOND)
    parts = {"start_s": {"imports": 1.0}, "batch_parts_ms": {"addBatch": 3}, "rss_bytes": {"driver": 1, "jvm": 2, "workers": 3}}
    query.take({"process": "spark.q.r0", "ready": True, **parts}, 7 * SECOND)
    query.tick(7 * SECOND)
    query.note_damage("main.r0.0", 3, 7 * SECOND)
    status = query.status(7 * SECOND)
    assert status["clock"] and status["journal"] and status["jobs"][0]["start_s"]
    yield status


def test_a_silent_process_is_a_failure_and_a_query_that_answers_is_ready():
    query = watched()
    all_speak(query, 0)
    later = 6 * SECOND
    for status in (node("r0", state="UP_FAILURE", missing=["lga"]), source("jfk"), egress(state="UP_FAILURE", since_ms=7.0)):
        query.take(status, later)
    status = query.status(later)
    assert [replica["state"] for replica in status["replicas"]] == ["UP_FAILURE", "FAILURE"]
    assert [entry["state"] for entry in status["inputs"]] == ["live", "failed"]
    assert (status["state"], status["ready"]) == ("UP_FAILURE", True)
    assert status["tentative"] == {"outstanding": 4, "since": "1970-01-01T00:00:00.007000Z", "cause": "c1"}
    query.take(node("r0", state="RECOVERING"), later)
    assert not query.status(later)["ready"]
    assert query.status(20 * SECOND)["state"] == "FAILURE"


def test_it_names_the_processes_whose_clocks_eat_what_x_leaves():
    query = watched()
    all_speak(query, SECOND)
    assert query.status(SECOND)["clock"] == []
    query.take(node("r1", alpha_x_ms=700.0, inputs=[{"name": "jfk/0", "skew_ms": 1_800.0}]), SECOND)
    [warning] = query.status(SECOND)["clock"]
    assert (warning["process"], warning["skew_ms"]) == ("node.q.r1", 1_800.0)
    assert query.status(60 * SECOND)["clock"] == [], "one that is silent says nothing of its clock"


def test_of_several_sites_the_best_egress_tells_what_clients_get():
    query = watched(sites=("a", "b"))
    query.take(egress("a", "UP_FAILURE", stable=3, since_ms=1.0), 0)
    query.take(egress("b", "STABLE", stable=8), 0)
    status = query.status(0)
    assert (status["state"], status["counts"]["stable"], status["violations"]) == ("STABLE", 8, 2)
    assert [entry["site"] for entry in status["egresses"]] == ["a", "b"]


def test_acknowledgements_become_trims_and_every_word_is_a_sign_of_life():
    query = watched()
    items = [acknowledge_item(instance_of(reader), (("jfk/0", 10), ("lga/0", 4))) for reader in READERS]
    assert query.hear(items, 0) == []
    assert [effect for effect in query.tick(0) if isinstance(effect, Trim)] == [Trim({"jfk/0": 10, "lga/0": 4})]
    for at in range(0, 100 * SECOND, SECOND):
        query.take(node("r1"), at)
        query.take(egress(), at)
        query.hear([message_item(instance_of(READERS[1]), LeaseEnd(instance_of(READERS[0])))], at)
        query.tick(at)
    assert query.claims.lost == []


def test_the_problem_that_has_ended_a_node_is_told_until_it_has_run_for_a_while():
    query = watched()
    all_speak(query, 0)
    problem = "operators.tagged: tagger of trade-operators 1.0.0 has failed: ValueError: no"
    query.take({**node("r1"), "problem": problem}, SECOND)
    query.take({**node("r1"), "problem": None}, 3 * SECOND)
    assert [replica["problem"] for replica in query.status(30 * SECOND)["replicas"]] == [None, problem]
    assert [replica["problem"] for replica in query.status(32 * SECOND)["replicas"]] == [None, None]


def test_a_lost_claim_is_in_the_journal_and_in_the_status():
    query = watched()
    found: list[tuple[str, str]] = []
    for at in range(0, 62 * SECOND, SECOND):
        query.take(node("r0"), at)
        query.take(egress(), at)
        found += entries(query.tick(at))
    assert ("main.r1.0", "was silent for 61 s, longer than the retention, and has lost its claim") in found
    status = query.status(at)
    assert status["claims"]["lost"] == ["main.r1.0"]
    assert [replica["claim_lost"] for replica in status["replicas"]] == [False, True]
    assert any(entry["kind"] == "claim" and entry["is_bad"] for entry in status["journal"])
    assert entries(query.take(node("r1"), at)) == [("main.r1.0", "is heard again, and has a claim again")]
    assert query.status(at)["claims"]["lost"] == []


def test_an_instance_that_stands_still_while_its_inputs_go_on_is_told_of():
    query = watched()
    found: list[tuple[str, str]] = []
    for second in range(60):
        at = second * SECOND
        for status in (source("jfk", second), source("lga", second), node("r0", second), egress()):
            query.take(status, at)
        found += entries(query.take(node("r1", 3), at))
        query.tick(at)
    # 10 X is 30 s here.
    assert found == [("main.r1.0", "has made no progress for 32 s, although all its inputs have")]
    assert query.status(at)["stalled"] == ["main.r1.0"]
    query.take(node("r1", 60), at)
    assert query.status(at)["stalled"] == []


def test_one_that_waits_for_a_spooling_source_has_not_stalled():
    query = watched()
    for second in range(60):
        for status in (source("jfk", second), source("lga", second, "spooling"), node("r0", 3)):
            assert entries(query.take(status, second * SECOND)) == []


def test_a_fragment_waits_for_the_one_before_it_and_only_that_has_stalled():
    query = watched(fragments={"merge": {"operators": ["all"]}, "count": {"operators": ["some"]}}, replicas=1)
    found: list[tuple[str, str]] = []
    for second in range(60):
        at = second * SECOND
        found += entries(query.take(source("jfk", second), at) + query.take(source("lga", second), at))
        status = node("r0")
        first, second_one = ({**status["instances"][0], "fragment": name} for name in ("merge", "count"))
        found += entries(query.take({**status, "instances": [first, second_one]}, at))
    assert [who for who, _ in found] == ["merge.r0.0"]


def test_changes_of_state_are_in_the_journal_once():
    query = watched()
    for at in range(0, 10 * SECOND, SECOND):
        all_speak(query, at)
        assert entries(query.tick(at)) == []
    query.take(node("r0", state="UP_FAILURE", missing=["lga"]), at)
    query.take(source("lga", state="failed"), at)
    assert entries(query.tick(at)) == [("main.r0.0", "STABLE -> UP_FAILURE, missing lga"), ("lga", "live -> failed")]
    assert entries(query.tick(at)) == []
    later = at + 20 * SECOND
    assert ("main.r1.0", "STABLE -> FAILURE") in entries(query.tick(later))


def test_an_input_that_is_idle_is_no_failure():
    query = watched()
    for at in range(0, 10 * SECOND, SECOND):
        all_speak(query, at)
        query.tick(at)
    query.take(source("lga", state="idle"), at)
    [entry] = [effect for effect in query.tick(at) if isinstance(effect, JournalEntry)]
    assert (entry.who, entry.text, entry.is_bad) == ("lga", "live -> idle", False)
    assert [stream["state"] for stream in query.status(at)["inputs"]] == ["live", "idle"]
    assert (query.status(at)["state"], query.status(at)["ready"]) == ("STABLE", True)


def test_what_comes_and_goes_does_not_drive_out_what_matters():
    query = watched()
    for at in range(0, 10 * SECOND, SECOND):
        all_speak(query, at)
        query.tick(at)
    query.note_damage("main.r0.0", 7, at)
    for turn in range(500):
        query.take(node("r0", state=("UP_FAILURE", "STABLE")[turn % 2]), at)
        query.tick(at)
    kinds = [entry["kind"] for entry in query.status(at)["journal"]]
    assert kinds.count("state") < 100
    assert kinds.count("checkpoint") == 1


def test_a_later_life_goes_on_with_the_journal():
    query = watched()
    for at in range(0, 10 * SECOND, SECOND):
        all_speak(query, at)
        query.tick(at)
    query.note_damage("main.r0.0", 7, at)
    last_word = query.status(at)
    after = WatchedQuery(record(), ("a",), at)
    after.resume(last_word)
    for later in range(at, at + 10 * SECOND, SECOND):
        for status in (node("r0"), source("jfk"), source("lga"), egress()):
            after.take(status, later)
        after.tick(later)
    assert [(entry["who"], entry["text"]) for entry in after.status(later)["journal"]] == [
        ("main.r0.0", "checkpoint 7 is damaged; an older one, or the log, is used instead"),
        ("main.r1.0", "STABLE -> FAILURE"),
    ]


def test_while_a_query_is_paused_silence_means_nothing():
    query = watched()
    all_speak(query, 0)
    query.change(record(2, paused=True), 0)
    for at in range(0, 200 * SECOND, SECOND):
        assert query.tick(at) == []
    status = query.status(at)
    assert (status["state"], status["paused"], status["ready"]) == ("PAUSED", True, False)
    assert {replica["state"] for replica in status["replicas"]} == {"PAUSED"}
    assert {entry["state"] for entry in status["inputs"]} == {"paused"}
    query.change(record(3), at)
    assert entries(query.tick(at + SECOND)) == []
    assert query.status(at + SECOND)["state"] == "STARTING"
    assert query.claims.lost == []


def test_a_change_holds_at_once_and_a_query_that_cannot_be_planned_changes_nothing():
    query = watched()
    query.change(record(2, delay_threshold="1s", replicas=1), 0)
    assert query.status(0)["x_ms"] == 1000.0
    assert [replica["replica"] for replica in query.status(0)["replicas"]] == ["r0"]
    bad = QueryRecord("q", {**record().spec, "output": "nothing"}, 3)
    with pytest.raises(UserError):
        query.change(bad, 0)
    assert query.record.revision == 2


@pytest.mark.parametrize(
    "items", [[{"acknowledge": {}}], [{"acknowledge": {"reader": "x", "positions": []}}], [{"message": {}}], [3]]
)
def test_what_makes_no_sense_is_an_error_that_the_shell_knows(items: list[Any]):
    with pytest.raises((KeyError, TypeError, ValueError)):
        watched().hear(items, 0)


def test_others_items_and_processes_are_passed_over():
    query = watched()
    assert query.hear([{"trim": [["jfk/0", 5]]}, acknowledge_item(instance_of("other.r7.3"), (("jfk/0", 99),))], 0) == []
    assert query.take({"process": "node.q.r9", "instances": [{**node("r9")["instances"][0]}]}, 0) == []
    assert query.take({"process": "egress.q.z"}, 0) == []
    assert query.tick(0) == []


def test_a_replica_in_spark_has_its_job_s_facts():
    query = watched(engine=["native", "spark"])
    [job] = query.status(0)["jobs"]
    assert (job["replica"], job["site"], job["batch_ms"], job["shards"]) == ("r1", "a", None, None)
    shard = {"fragment": "main", "shard": 0, "rows": 5, "state_bytes": 1_000, "rebuilds": 1}
    query.take({"process": "spark.q.r1", "ready": True, "batch_ms": 120, "shards": [shard], "pid": 4}, SECOND)
    [job] = query.status(SECOND)["jobs"]
    assert (job["batch_ms"], job["shards"], "pid" in job) == (120, [shard], False)
    [job] = query.status(10 * SECOND)["jobs"]
    assert job["batch_ms"] is None, "it is silent"
    assert watched().status(0)["jobs"] == []


def test_the_progress_of_replicas_in_spark_names_the_jobs_that_are_not_ready():
    query = watched(engine="spark", replicas=2)
    for replica in ("r0", "r1"):
        query.take(node(replica, state="RECOVERING"), SECOND)
    query.take({"process": "spark.q.r0", "ready": False}, SECOND)
    query.take({"process": "spark.q.r1", "ready": True}, SECOND)
    found = query.progress(SECOND)
    assert found is not None and found.starting == ("spark.q.r0",)
    query.take({"process": "spark.q.r0", "ready": True}, 2 * SECOND)
    ready = query.progress(2 * SECOND)
    assert ready is not None and ready.starting == ()


@pytest.mark.parametrize(
    "wrong",
    [{"journal": [{"at_ms": 1}]}, {"journal": [{"at_ms": None}]}, {"journal": 1}, {"seen": [["r0", 1]]}, {"seen": None}],
)
def test_what_an_earlier_life_said_and_is_not_understood_changes_nothing(wrong: dict[str, Any]):
    query = watched()
    query.note_damage("main.r0.0", 7, SECOND)
    before = query.status(SECOND)
    with pytest.raises((KeyError, TypeError, ValueError)):
        query.resume({**before, **wrong})
    assert query.status(SECOND) == before
