"""How far a stream may go: what partitions bring, what evidence says of them, and what the clock may move."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from boreal.model.frames import INFINITY
from boreal.query.spec import Stream
from intake.evidence import STALE_US, Evidence
from intake.place import PartitionPlace
from intake.stream_progress import EVIDENCE_US, LIVE_US, Question, StreamProgress
from sunion.tape import BEGINNING

SECOND = 1_000_000
BASE = 1_000_000 * SECOND
"""The source's clock as each situation begins."""
MARGIN = 250_000
INTERVAL = 50_000


class Stage:
    """A stream whose source is driven by hand, at seconds since BASE."""

    def __init__(self, partitions: Iterable[int] = (0,), **stream: Any) -> None:
        spec = Stream.model_validate({"topic": "t", "time": "at", "schema": {"n": "int"}, **stream})
        self.disorder = spec.disorder
        self.progress = StreamProgress(spec, 3 * SECOND, INTERVAL)
        self.partitions: dict[int, PartitionPlace] = {}
        self.seconds = 0.0
        self.unreachable: set[int] = set()
        self.assigned = list(partitions)
        self.progress.watch(self.assigned, BASE)

    @property
    def now(self) -> int:
        return BASE + round(self.seconds * SECOND)

    def rows(self, partition: int, delay: float = 0, to: float | None = None) -> None:
        """A row, so many seconds after its time, or of that time; it raises its floor."""
        time = BASE + round(to * SECOND) if to is not None else self.now - round(delay * SECOND)
        known = self.partitions.get(partition, PartitionPlace())
        self.partitions[partition] = replace(known, floor=max(known.floor, time - self.disorder))
        self.progress.take(partition, self.now)
        self.progress.bring(partition, self.now, time, time)

    def floor(self, partition: int, floor: int) -> None:
        self.partitions[partition] = replace(self.partitions.get(partition, PartitionPlace()), floor=floor)

    def evidence(self, asked: Iterable[int] | None = None) -> None:
        """The ends of these partitions, or of all, are read."""
        question = self.progress.ask(self.partitions, self.now)
        for partition in self.assigned if asked is None else asked:
            if partition not in self.unreachable:
                self.progress.answer(partition, self.partitions.get(partition), question, self.now)

    def until(self, seconds: float, brings: Mapping[int, float] | None = None) -> None:
        """Time passes, with evidence of what can be reached; these partitions bring rows, so many seconds after their time."""
        while self.seconds < seconds:
            self.seconds = round(min(self.seconds + 0.5, seconds), 3)
            for partition, delay in (brings or {}).items():
                if partition not in self.unreachable:
                    self.rows(partition, delay)
            self.evidence()

    @property
    def reach(self) -> float:
        """Seconds since BASE."""
        reach = self.progress.reach(self.partitions)
        return float("-inf") if reach <= BEGINNING else float("inf") if reach >= INFINITY else (reach - BASE) / SECOND


# The policy `data`


def test_a_stream_goes_as_far_as_its_slowest_partition() -> None:
    stage = Stage([0, 1], disorder="2s")
    stage.until(10, {0: 0, 1: 3})
    assert stage.reach == 5
    stage.until(20, {0: 0, 1: 3})
    assert stage.reach == 15


@pytest.mark.parametrize(("quiet_s", "reach"), [(29, 10.0), (30, 10.0), (30.5, 40.0), (35, 44.5), (300, 309.5)])
def test_a_quiet_partition_holds_back_its_stream_until_it_is_idle_and_then_follows_the_others(
    quiet_s: float, reach: float
) -> None:
    stage = Stage([0, 1])
    stage.until(10, {0: 0.5, 1: 0})
    stage.rows(1)
    stage.until(10 + quiet_s, {0: 0.5})
    assert (stage.reach, stage.progress.idle_partitions) == (reach, [1] if quiet_s >= 30 else [])


def test_what_follows_goes_no_further_than_the_others_were_when_its_end_was_asked() -> None:
    stage = Stage([0, 1])
    stage.until(10, {0: 0, 1: 0})
    stage.until(50, {0: 0})
    assert stage.reach == 50
    stage.unreachable = {1}
    stage.until(51, {0: 0})
    assert stage.reach == 50, "nobody knows what was written to 1 since"
    stage.unreachable = set()
    stage.until(51.5, {0: 0})
    assert stage.reach == 51.5


def test_a_partition_that_was_idle_holds_back_its_stream_again_once_it_brings_rows() -> None:
    stage = Stage([0, 1], disorder="2s")
    stage.until(10, {0: 0, 1: 0})
    stage.until(60, {0: 0})
    assert stage.reach == 58
    stage.rows(1, delay=1)
    assert stage.progress.idle_partitions == [] and stage.reach == 58
    stage.until(70, {0: 0})
    assert stage.reach == 58
    stage.until(71, {0: 0, 1: 1})
    assert stage.reach == 68


def test_when_all_partitions_are_idle_a_live_stream_follows_the_clock() -> None:
    stage = Stage([0, 1], disorder="2s")
    stage.until(10, {0: 0.25, 1: 1})
    stage.until(39.5)
    assert stage.reach == 7, "not idle yet"
    stage.until(41)
    assert stage.reach == 41 - 1 - 2 - MARGIN / SECOND
    stage.until(1000)
    assert stage.reach == 1000 - 1 - 2 - MARGIN / SECOND


def test_what_the_usual_delay_is_forgets_what_was_long_ago_and_never_is_below_zero() -> None:
    stage = Stage()
    stage.until(30, {0: 20})
    stage.until(300, {0: -10})
    stage.until(400)
    assert stage.reach == 400 - MARGIN / SECOND


def test_the_margin_is_a_small_part_of_x() -> None:
    stage = Stage()
    stage.progress = StreamProgress(Stream.model_validate({"time": "at", "schema": {"n": "int"}}), 80_000, INTERVAL)
    stage.progress.watch([0], BASE)
    stage.until(1, {0: 0})
    stage.until(100)
    assert stage.reach == 100 - 0.01


def test_a_replay_that_has_come_to_its_end_stands_still() -> None:
    stage = Stage()
    stage.until(10, {0: LIVE_US / SECOND + 1})
    reach = stage.reach
    stage.until(3600)
    assert stage.progress.idle_partitions == [0] and stage.reach == reach


def test_a_backlog_that_ends_in_live_rows_is_live_and_its_age_is_not_the_producers_delay() -> None:
    stage = Stage()
    for age in (90_000, 3_000, 4):
        stage.rows(0, delay=age)
    stage.until(10, {0: 1})
    stage.until(100)
    assert stage.reach == 100 - 1 - MARGIN / SECOND


def test_what_comes_late_after_an_outage_says_nothing_of_the_producers_usual_delay() -> None:
    stage = Stage()
    stage.until(10, {0: 1})
    stage.unreachable = {0}
    stage.until(20)
    stage.unreachable = set()
    stage.until(21, {0: 9})
    stage.until(25, {0: 5})
    stage.until(60, {0: 1})
    stage.until(100)
    assert stage.reach == 100 - 1 - MARGIN / SECOND


def test_a_stream_of_which_nothing_is_known_stands_still_however_long_its_topic_is_empty() -> None:
    stage = Stage([0, 1])
    stage.until(100_000)
    assert stage.reach == float("-inf") and stage.progress.idle_partitions == [0, 1]


def test_a_partition_that_never_had_a_row_holds_back_none_that_has_read_it_to_its_end() -> None:
    stage = Stage([0, 1])
    stage.unreachable = {1}
    stage.until(1, {0: 0})
    assert stage.reach == float("-inf"), "what it holds is not known yet"
    stage.unreachable = set()
    stage.until(5, {0: 0})
    assert stage.reach == 5
    stage.floor(0, INFINITY)
    stage.until(6)
    assert stage.reach == float("inf")


def test_records_that_are_all_refused_are_no_sign_of_a_producer() -> None:
    stage = Stage([0, 1])
    stage.partitions[1] = PartitionPlace(5)
    for second in range(1, 61):
        stage.until(second, {0: 0})
        stage.progress.take(1, stage.now)
    assert stage.reach == 60 and stage.progress.idle_partitions == [1]


def test_a_stream_does_not_end_with_one_of_its_partitions() -> None:
    stage = Stage([0, 1])
    stage.until(10, {0: 0, 1: 0})
    stage.until(25)
    stage.floor(0, INFINITY)
    stage.progress.bring(0, stage.now)
    stage.until(45)
    assert stage.progress.idle_partitions == [1] and stage.reach == 45 - MARGIN / SECOND
    stage.until(100)
    assert stage.reach == 100 - MARGIN / SECOND
    stage.floor(1, INFINITY)
    assert stage.reach == float("inf")


def test_under_the_policy_producer_only_the_producers_words_count() -> None:
    stage = Stage([0, 1, 2], boundary="producer")
    stage.floor(0, BASE + SECOND)
    stage.floor(1, BASE + 7 * SECOND)
    stage.until(1000)
    assert stage.reach == 1


# Out of reach


@pytest.mark.parametrize("away_s", [3.0, 31.0, 300.0])
def test_a_frozen_broker_makes_nothing_idle_and_idle_is_counted_from_the_first_evidence_after_it(away_s: float) -> None:
    stage = Stage([0])
    stage.until(10, {0: 0})
    stage.until(25)
    stage.unreachable = {0}
    stage.until(25 + away_s)
    assert stage.reach == 10 and stage.progress.unheard(stage.now) == [0]
    stage.unreachable = set()
    back = 25 + away_s
    stage.until(back + 30)
    assert stage.reach == 10, "the producers bring what they could not send"
    stage.until(back + 31)
    assert stage.progress.idle_partitions == [0] and stage.reach > back


def test_a_frozen_broker_holds_only_its_own_partitions() -> None:
    stage = Stage([0, 1])
    stage.until(10, {0: 0, 1: 0})
    stage.unreachable = {1}
    stage.until(100, {0: 0})
    assert stage.reach == 10 and stage.progress.unheard(stage.now) == [1]
    assert stage.progress.idle_partitions == []


def test_less_than_an_outage_costs_nothing() -> None:
    stage = Stage([0])
    stage.until(10, {0: 0})
    stage.unreachable = {0}
    stage.until(11.5)
    stage.unreachable = set()
    stage.until(40)
    assert stage.progress.idle_partitions == [0]


def test_the_clock_stands_still_while_the_topic_is_out_of_reach_and_for_a_grace_after_it() -> None:
    stage = Stage([0], boundary="clock", disorder="1s")
    stage.until(10)
    assert stage.reach == 9
    stage.unreachable = {0}
    stage.until(41)
    assert stage.reach == 9
    stage.unreachable = set()
    stage.until(71)
    assert stage.reach == 9, "what the producers could not send is still to come"
    stage.until(72)
    assert stage.reach == 71


def test_the_grace_is_no_longer_than_what_it_makes_up_for() -> None:
    stage = Stage([0], boundary="clock")
    stage.until(10)
    stage.unreachable = {0}
    stage.until(13)
    stage.unreachable = set()
    stage.until(20)
    assert stage.reach == 10
    stage.until(21)
    assert stage.reach == 21


def test_under_the_clock_a_partition_out_of_reach_holds_back_its_stream_also_if_it_never_had_a_row() -> None:
    stage = Stage([0, 1], boundary="clock")
    stage.until(10, {0: 0})
    assert stage.reach == 10
    stage.unreachable = {1}
    stage.until(12, {0: 0})
    assert stage.reach == 10


# A new life


@pytest.mark.parametrize(
    ("away_s", "policy", "at_40_s"),
    [
        (1, "data", 40 - 30 - MARGIN / SECOND),
        (LIVE_US / SECOND, "data", 40 - 30 - MARGIN / SECOND),
        (LIVE_US / SECOND + 1, "data", -LIVE_US / SECOND - 1),
        (1, "clock", 40),
        (20, "clock", 40),
    ],
)
def test_a_new_life_of_a_quiet_stream_goes_on_as_the_one_before(away_s: float, policy: str, at_40_s: float) -> None:
    """What its rows' usual delay was is not known any more: they are left as long as a producer may pause."""
    stage = Stage([0], boundary=policy)
    promise = BASE - round(away_s * SECOND)
    stage.floor(0, promise)
    stage.progress.begin(BEGINNING, promise, BASE)
    stage.until(40)
    assert stage.reach == at_40_s


def test_a_new_life_after_an_outage_leaves_the_producers_a_grace_under_the_clock() -> None:
    stage = Stage([0], boundary="clock")
    stage.progress.begin(BEGINNING, BASE - 60 * SECOND, BASE)
    stage.until(29.5)
    assert stage.reach == float("-inf")
    stage.until(30)
    assert stage.reach == 30


def test_a_first_life_has_nothing_to_wait_for() -> None:
    stage = Stage([0], boundary="clock")
    stage.progress.begin(BEGINNING, BEGINNING, BASE)
    stage.until(1)
    assert stage.reach == 1


# What it says of itself, and how often evidence is needed


def test_a_stream_is_live_while_it_brings_rows() -> None:
    stage = Stage([0])
    assert not stage.progress.brings(stage.now)
    stage.until(10, {0: 0})
    stage.until(39.5)
    assert stage.progress.brings(stage.now)
    stage.until(40)
    assert not stage.progress.brings(stage.now)


def test_evidence_is_looked_for_at_each_boundary_only_where_one_waits_for_it() -> None:
    stage = Stage([0, 1])
    assert stage.progress.evidence_interval_us(stage.partitions) == EVIDENCE_US, "no row ever: there is no boundary to move on"
    stage.until(5, {0: 0})
    assert stage.progress.evidence_interval_us(stage.partitions) == INTERVAL, "partition 1 waits"
    stage.until(10, {0: 0, 1: 0})
    assert stage.progress.evidence_interval_us(stage.partitions) == EVIDENCE_US
    stage.until(50)
    assert stage.progress.evidence_interval_us(stage.partitions) == INTERVAL
    clock = Stage([0], boundary="clock")
    clock.until(10, {0: 0})
    assert clock.progress.evidence_interval_us(clock.partitions) == INTERVAL


def test_partitions_that_bring_rows_are_not_asked_for_their_ends() -> None:
    stage = Stage([0, 1])
    stage.rows(0)
    assert stage.progress.to_ask([0, 1], EVIDENCE_US, stage.now) == [0, 1], "these rows may be a backlog"
    stage.until(5, {0: 0})
    assert stage.progress.to_ask([0, 1], EVIDENCE_US, stage.now) == [1]
    assert stage.progress.to_ask([0, 1], EVIDENCE_US, stage.now + EVIDENCE_US - 1) == [1]
    assert stage.progress.to_ask([0, 1], EVIDENCE_US, stage.now + EVIDENCE_US) == [0, 1]
    stage.progress.take(0, stage.now + EVIDENCE_US)
    assert stage.progress.to_ask([0], EVIDENCE_US, stage.now + EVIDENCE_US) == [0], "records that are all refused"
    clock = Stage([0], boundary="clock")
    clock.until(5, {0: 0})
    assert clock.progress.to_ask([0], EVIDENCE_US, clock.now) == [0], "its boundary follows evidence"


@pytest.mark.parametrize("policy", ["data", "producer", "clock"])
@pytest.mark.parametrize("seed", range(20))
def test_ends_that_are_not_asked_for_change_no_boundary(policy: str, seed: int) -> None:
    chance = random.Random(seed)
    always, sparing = Stage([0, 1, 2], boundary=policy), Stage([0, 1, 2], boundary=policy)
    chances = [chance.choice([0.0, 0.05, 0.5, 1.0]) for _ in always.assigned]
    for _ in range(400):
        if chance.random() < 0.03:
            at = chance.randrange(3)
            chances[at] = chance.choice([0.0, 0.05, 0.5, 1.0])
            always.unreachable = sparing.unreachable = {chance.randrange(6)}
        rows = [(number, chance.random()) for number, often in enumerate(chances) if chance.random() < often]
        for stage in (always, sparing):
            stage.seconds += EVIDENCE_US / SECOND
            for number, delay in rows:
                if number not in stage.unreachable:
                    stage.rows(number, delay)
        always.evidence()
        sparing.evidence(sparing.progress.to_ask(sparing.assigned, EVIDENCE_US, sparing.now))
        assert sparing.reach == always.reach
        assert sparing.progress.idle_partitions == always.progress.idle_partitions


def test_a_new_x_brings_another_interval() -> None:
    stage = Stage([0])
    stage.until(10, {0: 0})
    stage.until(50)
    stage.progress.set_threshold(1_000_000, 7_000)
    assert stage.progress.evidence_interval_us(stage.partitions) == 7_000


class Topic:
    def __init__(self) -> None:
        self.end = {0: 5, 1: 7}
        self.position = {0: 5, 1: 5}
        self.asked: list[list[int]] = []

    def ends(self, numbers: Collection[int], since: int) -> dict[int, int]:
        self.asked.append(list(numbers))
        self.since = since
        return {number: self.end[number] for number in self.asked[-1]}

    def has_read(self, number: int, end: int) -> bool:
        return self.position[number] >= end


def test_a_question_is_answered_once_all_before_the_end_was_taken_and_asked_again_when_it_is_stale() -> None:
    topic, answers = Topic(), []
    evidence = Evidence(topic, lambda: 77, lambda number, question, now: answers.append((number, question.asked_at, now)))
    evidence.ask([0, 1], Question(10, None, BEGINNING))
    assert answers == [(0, 10, 77)] and topic.since == 10
    topic.end[1] = 9
    evidence.ask([0, 1], Question(20, None, BEGINNING))
    assert topic.asked == [[0, 1], [0]], "the first question about 1 is still open"
    topic.position[1] = 7
    evidence.look()
    assert answers[-1] == (1, 10, 77)
    evidence.ask([1], Question(30, None, BEGINNING))
    topic.end[1] = 7
    evidence.ask([1], Question(31 + STALE_US, None, BEGINNING))
    assert answers[-1] == (1, 31 + STALE_US, 77), "records were taken back, and their end will never come"
    topic.end[1] = 9
    evidence.ask([1], Question(50, None, BEGINNING))
    evidence.forget()
    topic.position[1] = 9
    evidence.look()
    assert answers[-1] == (1, 31 + STALE_US, 77)
