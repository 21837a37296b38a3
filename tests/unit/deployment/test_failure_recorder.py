"""One failure of a query is one record, whoever sees it, in whatever order, and however often the recorder is restarted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from deployment.events import DETECTED, OVER, TENTATIVE, UNDONE, RecordedEvent, read_event
from deployment.failure_recorder import SETTLED_AFTER_MS, SILENT, Clients, FailureRecorder
from deployment.failures import Failures

See = Callable[[FailureRecorder], list[RecordedEvent]]

REGIME = {"x_ms": 3_000.0, "reconcile": "overlay_redo", "policy": {"failure": "process", "stabilization": "process"}}


def state(name: str, state: str, at_ms: float, *missing: str, redo_s: float | None = None) -> See:
    return lambda recorder: recorder.see_state(name, state, at_ms, missing, at_ms - 150 if missing else None, redo_s)


def clients(at_ms: float, outstanding: int, undone: int, since_ms: float | None = None, cause: str = "c") -> See:
    return lambda recorder: recorder.see_clients("a", Clients(outstanding, since_ms, cause, undone, 0), at_ms)


OF_R0 = [
    state("main.r0.0", "UP_FAILURE", 1_000.0, "jfk"),
    state("main.r0.0", "STABILIZATION", 9_000.0),
    state("main.r0.0", "STABLE", 9_010.0, redo_s=0.01),
]
OF_R1 = [
    state("main.r1.0", "UP_FAILURE", 1_020.0, "jfk"),
    state("main.r1.0", "STABILIZATION", 9_011.0),
    state("main.r1.0", "STABLE", 9_020.0, redo_s=0.009),
]
OF_EGRESS = [
    clients(0.0, 0, 5),
    state("egress.a", "UP_FAILURE", 1_030.0, "by_carrier"),
    clients(4_000.0, 3, 5, since_ms=3_700.0),
    clients(9_015.0, 0, 13),
    state("egress.a", "STABLE", 9_030.0),
]


def recorder_of(events: list[RecordedEvent]) -> FailureRecorder:
    made = FailureRecorder("q")
    made.regime = REGIME
    for event in events:
        made.resume(read_event(event.to_json()))
    return made


def orders(sequences: list[list[See]]) -> st.SearchStrategy[list[See]]:
    """All ways to mingle sequences, each in its own order."""
    places = [number for number, sequence in enumerate(sequences) for _ in sequence]

    def mingled(order: list[int]) -> list[See]:
        rests = [iter(sequence) for sequence in sequences]
        return [next(rests[number]) for number in order]

    return st.permutations(places).map(mingled)


@given(order=orders([OF_R0, OF_R1, OF_EGRESS]), restarts=st.sets(st.integers(0, 11)))
def test_one_id_and_the_same_account_in_every_order_and_with_every_restart_of_the_recorder(
    order: list[See], restarts: set[int]
) -> None:
    events: list[RecordedEvent] = []
    recorder = recorder_of(events)
    recorder.see_clients("a", Clients(0, None, None, 5, 0), 0.0)  # which is seen before anything fails
    for place, see in enumerate(order):
        events += see(recorder)
        assert not see(recorder), "what is seen again is not recorded again"
        if place in restarts and recorder.failure is not None:
            recorder = recorder_of(events)
    events += recorder.settle(9_030.0 + SETTLED_AFTER_MS)
    failures = Failures()
    for event in events:
        failures.take(event)
    [failure] = failures.of("q")
    assert {event.failure for event in events} == {failure.id}
    told = failure.detail()
    assert (told["state"], told["rows_undone"], told["rows_tentative"]) == ("over", 8, 8)
    assert set(told["missing"]) == {"jfk", "by_carrier"} and told["x_ms"] == 3_000.0
    assert (told["begun_ms"], told["detected_ms"]) == (850.0, 1_000.0)
    assert [(i["instance"], i["redo_s"]) for i in told["instances"] if i["redo_s"]] == [
        ("main.r0.0", 0.01),
        ("main.r1.0", 0.009),
    ]
    assert [(phase["name"], phase["from_ms"], phase["to_ms"]) for phase in told["phases"]] == [
        ("detected", 850.0, 1_000.0),
        ("held", 1_000.0, 3_700.0),
        ("tentative", 3_700.0, 9_000.0),
        ("redo", 9_000.0, 9_030.0),
    ]


def test_a_calm_night_writes_nothing():
    recorder = recorder_of([])
    for second in range(100):
        at_ms = second * 1_000.0
        for name in ("main.r0.0", "main.r1.0", "egress.a"):
            assert not recorder.see_state(name, "STABLE", 5.0)
            assert not recorder.see_reads(name, {"jfk/0": "r0"}, at_ms)
        assert not recorder.see_clients("a", Clients(0, None, None, 7), at_ms)
        assert not recorder.settle(at_ms)


def test_early_answers_are_no_failure():
    recorder = recorder_of([])
    assert not recorder.see_clients("a", Clients(4, 10.0, "early", 0), 10.0)
    assert not recorder.see_clients("a", Clients(0, None, None, 4), 20.0)
    assert recorder.failure is None


def test_a_short_failure_shows_clients_nothing():
    recorder = recorder_of([])
    events = [*OF_R0[0](recorder), *state("main.r0.0", "STABLE", 2_000.0)(recorder), *recorder.settle(9_000.0)]
    assert [event.kind for event in events] == ["detected", "healed", "reconciled", "over"]
    assert events[-1].facts["rows_tentative"] == 0 and events[-1].at_ms == 2_000.0


def test_failures_that_follow_each_other_have_their_own_ids():
    recorder, ids = recorder_of([]), set()
    for at_ms in (1_000.0, 60_000.0):
        [detected] = state("main.r0.0", "UP_FAILURE", at_ms, "jfk")(recorder)
        state("main.r0.0", "STABLE", at_ms + 10)(recorder)
        assert not recorder.settle(at_ms + 11), "another sign may follow"
        [over] = recorder.settle(at_ms + 10 + SETTLED_AFTER_MS)
        ids.add((detected.failure, over.failure))
    assert len(ids) == 2


def test_a_second_cut_in_the_first_belongs_to_it():
    recorder = recorder_of([])
    events = [
        *state("main.r0.0", "UP_FAILURE", 1_000.0, "jfk")(recorder),
        *recorder.see_missing("main.r0.0", ["jfk", "lga"], 2_000.0),
        *recorder.see_missing("main.r0.0", ["lga"], 3_000.0),
    ]
    assert [(event.kind, event.facts["missing"]) for event in events] == [(DETECTED, ["jfk"]), (DETECTED, ["jfk", "lga"])]
    assert len({event.failure for event in events}) == 1


def test_a_replica_that_was_silent_is_healed_when_it_is_heard():
    recorder = recorder_of([])
    events = [
        *recorder.see_state("main.r0.0", SILENT, 6_000.0),
        *recorder.see_state("main.r0.0", SILENT, 7_000.0),
        *recorder.see_state("main.r0.0", "RECOVERING", 8_000.0),
        *recorder.see_state("main.r0.0", "STABLE", 8_500.0),
    ]
    assert [(event.kind, event.at_ms) for event in events] == [
        ("detected", 6_000.0),
        ("healed", 8_000.0),
        ("reconciled", 8_500.0),
    ]


def test_an_instance_that_the_query_has_no_longer_ends_no_failure_late():
    recorder = recorder_of([])
    state("main.r1.0", "UP_FAILURE", 1_000.0, "jfk")(recorder)
    recorder.keep(["main.r0.0"], 2_000.0)
    assert [event.kind for event in recorder.settle(9_000.0)] == [OVER]


def test_rows_are_counted_whether_their_beginning_was_seen_or_not():
    for seen in permutations([clients(4_000.0, 3, 5, since_ms=3_700.0), clients(9_015.0, 0, 13)]):
        recorder = recorder_of([])
        events = [*clients(0.0, 0, 5)(recorder), *OF_R0[0](recorder), *[event for see in seen for event in see(recorder)]]
        assert sum(event.facts["rows"] for event in events if event.kind == UNDONE) >= 8
    assert TENTATIVE in {event.kind for event in events}


def test_a_paused_query_has_no_failure():
    recorder = recorder_of([])
    OF_R0[0](recorder)
    [over] = recorder.end("paused", 5_000.0)
    assert over.facts["because"] == "paused" and not recorder.end("paused", 6_000.0)
