"""The service level of a query: what is seen of its egresses in, records and budgets out; held against a list of seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.query.spec import Slo
from deployment.events import DELETED, SERVED, RecordedEvent, read_event
from deployment.slo import HOUR_MS, MINUTE_MS, ServedLedger, ServedSpan, ServiceLevel

BEGIN_MS = 1_699_999_200_000.0
"""A full hour."""
SECOND_MS = 1_000.0
OBJECTIVE = Slo.model_validate({"objective": "99%", "window": "6h"})

# What clients are given for some seconds: new rows and late ones a second, and whether they hold tentative rows.
Stretch = tuple[int, int, int, bool]
STRETCHES = st.lists(
    st.tuples(
        st.integers(1, 200), st.sampled_from([0, 0, 3]), st.sampled_from([0, 0, 0, 1]), st.sampled_from([False, False, True])
    ),
    min_size=1,
    max_size=12,
)


class Told:
    """Stretches as an egress tells them, every second, and the same as a list of seconds."""

    def __init__(self, level: ServiceLevel) -> None:
        self.level = level
        self.now_ms = BEGIN_MS
        self.rows = self.late = 0
        self.events: list[RecordedEvent] = []
        self.seconds: list[tuple[float, int, int, bool]] = []
        self.see(False)

    def see(self, is_tentative: bool) -> None:
        self.events += self.level.see("home", self.rows, self.late, is_tentative, self.now_ms)

    def give(self, seconds: int, rows: int = 0, late: int = 0, is_tentative: bool = False) -> None:
        self.see(is_tentative)
        for _ in range(seconds):
            self.seconds.append((self.now_ms, rows, late, is_tentative))
            self.now_ms += SECOND_MS
            self.rows += rows + late
            self.late += late
            self.see(is_tentative)


@settings(max_examples=40, deadline=None)
@given(stretches=STRETCHES)
def test_it_is_what_a_list_of_all_seconds_says(stretches: list[Stretch]) -> None:
    """Within the window, whatever is recorded and whatever is not yet; and again after a restart from the records."""
    level = ServiceLevel("q")
    told = Told(level)
    for stretch in stretches:
        told.give(*stretch)
    found = level.report(OBJECTIVE, told.now_ms)
    rows, late = sum(rows for _, rows, _, _ in told.seconds), sum(late for _, _, late, _ in told.seconds)
    tentative_ms = sum(SECOND_MS for _, _, _, is_tentative in told.seconds if is_tentative)
    assert (found["results"]["on_time"], found["results"]["late"]) == (rows, late)
    assert found["time"]["tentative_ms"] == pytest.approx(tentative_ms)
    assert found["time"]["share"] == pytest.approx(1 - tentative_ms / (SECOND_MS * len(told.seconds)))
    assert found["time"]["budget_left"] == pytest.approx(1 - tentative_ms / (0.01 * 6 * HOUR_MS))
    if rows + late:
        assert found["results"]["share"] == pytest.approx(rows / (rows + late))
        assert found["results"]["budget_left"] == pytest.approx(1 - late / (rows + late) / 0.01)
    told.events += level.stop(told.now_ms)
    again = ServiceLevel("q")
    for event in told.events:
        again.resume(read_event(event.to_json()))
    after = again.report(OBJECTIVE, told.now_ms)
    assert (after["results"]["on_time"], after["results"]["late"]) == (rows, late)
    assert after["time"]["tentative_ms"] == pytest.approx(tentative_ms)
    # Bad minutes are told apart, and the calm ones around them are one record.
    bad = {at // MINUTE_MS for at, _, late, is_tentative in told.seconds if late or is_tentative}
    assert len(told.events) <= 2 * len(bad) + 1 + len(told.seconds) // 3_600


@settings(max_examples=60, deadline=None)
@given(spans=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60), st.integers(0, 9), st.integers(0, 3)), max_size=60))
def test_the_ledger_adds_up(spans: list[tuple[int, int, int, int]]) -> None:
    """What became hours is as much as it was, but for an hour at the edge of a time; nothing counts twice."""
    ledger, plain, at_ms = ServedLedger(), [], BEGIN_MS
    for gap, minutes, on_time, late in spans:
        begin_ms = at_ms + gap * MINUTE_MS
        at_ms = begin_ms + minutes * MINUTE_MS
        plain.append(ServedSpan(begin_ms, at_ms, on_time, late))
        ledger.add(plain[-1])
    for hours in (1, 6, 24, 30 * 24):
        since_ms = at_ms - hours * HOUR_MS
        sums = ledger.sums(since_ms)
        within = [sum(span.late for span in plain if span.from_ms >= since_ms + edge) for edge in (HOUR_MS, -HOUR_MS)]
        assert within[0] - 1e-6 <= sums.late <= within[1] + 1e-6
    assert ledger.sums(0.0).on_time == sum(span.on_time for span in plain)


def test_a_calm_hour_is_one_record_and_an_idle_night_is_none() -> None:
    told = Told(ServiceLevel("q"))
    told.give(3_600, rows=2)
    [event] = told.events
    assert (event.kind, event.query, event.facts["on_time"], event.facts["late"]) == (SERVED, "q", 7_200, 0)
    told.give(6 * 3_600)
    assert told.events == [event]
    assert told.level.report(OBJECTIVE, told.now_ms)["time"]["share"] == 1.0


def test_thirty_days_of_trouble_take_bounded_memory() -> None:
    ledger = ServedLedger()
    for minute in range(40 * 24 * 60):
        at_ms = BEGIN_MS + minute * MINUTE_MS
        ledger.add(ServedSpan(at_ms, at_ms + MINUTE_MS, 5, 1))
    assert len(ledger) < 1_200
    assert ledger.sums(0.0).late == pytest.approx(30 * 24 * 60, abs=60)


def test_burn_rates_are_of_the_last_hours() -> None:
    """All of the budget within six hours is a rate of 1; 14.4 times that is what wakes somebody."""
    told = Told(ServiceLevel("q"))
    told.give(3_600, rows=9)
    told.give(600, rows=9, late=1, is_tentative=True)
    found = told.level.report(OBJECTIVE, told.now_ms)
    assert found["time"]["burn_1h"] == pytest.approx(600 / 3_600 / 0.01)
    assert found["time"]["burn_6h"] == pytest.approx(600 / 21_600 / 0.01)
    assert found["results"]["burn_1h"] == pytest.approx(600 / (50 * 60 * 9 + 600 * 10) / 0.01, rel=0.01)
    told.give(2 * 3_600, rows=9)
    later = told.level.report(OBJECTIVE, told.now_ms)
    assert later["time"]["burn_1h"] == 0.0 == later["results"]["burn_1h"] and later["time"]["burn_6h"] > 0


def test_time_goes_on_while_an_egress_is_not_heard() -> None:
    """Clients still hold what was tentative."""
    told = Told(ServiceLevel("q"))
    told.give(30, rows=1, is_tentative=True)
    told.now_ms += 150 * SECOND_MS
    assert told.level.report(OBJECTIVE, told.now_ms)["time"]["tentative_ms"] == 180_000.0
    told.see(False)
    assert told.level.report(OBJECTIVE, told.now_ms + 60_000)["time"]["tentative_ms"] == 180_000.0


def test_a_record_has_the_time_before_its_end_and_the_next_one_the_rest() -> None:
    level = ServiceLevel("q")
    level.see("home", 0, 0, True, BEGIN_MS)
    [event] = level.see("home", 0, 0, True, BEGIN_MS + 90_000)
    [rest] = level.stop(BEGIN_MS + 100_000)
    assert (event.at_ms, event.facts["tentative_ms"]) == (BEGIN_MS + 60_000, 60_000)
    assert (rest.facts["from_ms"], rest.facts["tentative_ms"]) == (BEGIN_MS + 60_000, 40_000)


def test_what_comes_while_nothing_is_counted_does_not_count() -> None:
    level = ServiceLevel("q")
    level.see("home", 0, 0, False, BEGIN_MS)
    level.stop(BEGIN_MS + 1_000)
    level.see("home", 70, 7, False, BEGIN_MS + 2_000)
    level.see("home", 71, 7, False, BEGIN_MS + 3_000)
    found = level.report(OBJECTIVE, BEGIN_MS + 3_000)["results"]
    assert (found["on_time"], found["late"]) == (1, 0)


def anew(level: ServiceLevel) -> None:
    level.see("home", 4, 2, False, BEGIN_MS + 2_000)


def stopped(level: ServiceLevel) -> None:
    level.stop(BEGIN_MS + 1_500)
    level.see("home", 0, 0, False, BEGIN_MS + 1_600)
    level.see("home", 4, 2, False, BEGIN_MS + 2_000)


@pytest.mark.parametrize("again", [anew, stopped])
def test_an_egress_that_begins_anew_counts_anew(again: Callable[[ServiceLevel], None]) -> None:
    level = ServiceLevel("q")
    level.see("home", 100, 50, False, BEGIN_MS)  # before anybody counted
    level.see("home", 110, 50, False, BEGIN_MS + 1_000)
    again(level)
    found = level.report(OBJECTIVE, BEGIN_MS + 2_000)["results"]
    assert (found["on_time"], found["late"]) == (12, 2)


def test_a_query_of_a_name_that_was_deleted_begins_anew() -> None:
    told = Told(ServiceLevel("q"))
    told.give(60, rows=1, late=1)
    told.events += told.level.stop(told.now_ms)
    level = ServiceLevel("q")
    for event in (*told.events, RecordedEvent(told.now_ms, DELETED, "q")):
        level.resume(event)
    assert level.report(OBJECTIVE, told.now_ms)["results"]["late"] == 0
