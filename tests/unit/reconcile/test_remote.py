"""An operator host that is told its orders as bytes: what it answers, after whatever loss, is what it answered before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError
from boreal.query.spec import Mode
from reconcile.consequences import Consequence, EmitRows, EndCorrection
from reconcile.engine import LATENCY_GUESS_US, LEAST_SAMPLES, Engine, HostFailed
from reconcile.events import Effect, Obey
from reconcile.orders import (
    Answer,
    Begin,
    Copy,
    DropLive,
    EndRedo,
    Order,
    Place,
    RollBack,
    SetMark,
    decode_answer,
    decode_order,
    encode_answer,
    encode_order,
)
from reconcile.parts import Parts, in_parts, is_part
from reconcile.remote import Cause, OrderedHost, Rebuild, RemoteHost, Unreachable
from sunion.steps import Step
from tests.harness import plan_of, query_of

OPERATORS = {"n": {"aggregate": "a", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}}}
FRAGMENT = plan_of(query_of(OPERATORS, "n", streams=("a",))).fragment("main")
[INPUT] = FRAGMENT.inputs
INPUTS = {INPUT.name: INPUT.schema}
OUTPUTS = {edge.operator: edge.schema for edge in FRAGMENT.outputs}


def step(*rows: tuple[int, int], upto: int, tentative: bool = False) -> Step:
    """Rows (ms, k) of a step up to a time in ms."""
    columns = [[ms * 1000 for ms, _ in rows], [k for _, k in rows], [1.0] * len(rows)]
    arrow = INPUT.schema.arrow
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, arrow, strict=True)], schema=arrow
    )
    return Step({"a": batch}, upto * 1000, tentative, False, ())


def life(mode: Mode) -> list[Order]:
    """Orders of a whole failure, and of what comes after it."""
    copies = mode is Mode.CHECKPOINT_REDO
    return [
        Begin(1, mode, None, None),
        step((100, 1), (600, 2), upto=1_000),
        step((1_100, 1), upto=1_400),
        SetMark(7 if copies else None),
        step((1_600, 2), upto=2_000, tentative=True),
        RollBack(False),
        *([step((1_100, 1), upto=1_400)] if mode is Mode.UNDO_REDO else []),
        step((1_500, 1), (1_600, 2), upto=2_000),
        EndRedo(),
        step((2_200, 3), upto=3_000),
    ]


class Log:
    """Orders at their offsets, in parts of so many bytes at most, and snapshots, in memory."""

    def __init__(self, orders: Sequence[Order], start: int = 0, part_bytes: int = 1 << 20) -> None:
        places = [Place(1, number) for number, _ in enumerate(orders, start=1)]
        self.orders = [
            record
            for place, order in zip(places, orders, strict=True)
            for record in in_parts(place, encode_order(place, order), part_bytes)
        ]
        self.start = start
        self.snapshots: dict[int, bytes] = {}

    def read(self, first: int, end: int) -> Iterable[tuple[int, bytes]]:
        return [(offset, self.orders[offset]) for offset in range(max(first, self.start), end)]

    def latest(self, offset: int) -> tuple[int, bytes] | None:
        found = max((at for at in self.snapshots if at <= offset), default=None)
        return (found, self.snapshots[found]) if found is not None else None

    def keep(self, offset: int, snapshot: bytes) -> None:
        self.snapshots[offset] = snapshot


def no_checkpoint(owner: str, number: int) -> bytes:
    raise KeyError(owner, number)


def host_over(log: Log, snapshot_bytes: int = 1 << 30, part_bytes: int = 1 << 20) -> OrderedHost:
    return OrderedHost(FRAGMENT, no_checkpoint, log, log, snapshot_bytes, part_bytes)


def obey_all(host: OrderedHost, log: Log, first: int = 0) -> list[bytes]:
    return host.obey(list(log.read(first, len(log.orders))), lambda number, state: None)


def test_early_answers_that_never_end_leave_snapshots_all_the_same() -> None:
    """At the end of each batch there is a live branch; a single state is there only in its midst."""
    orders: list[Order] = [Begin(1, Mode.UNDO_REDO, None, None), SetMark(None, overlaid=True)]
    for n in range(1, 12):
        early = step((100 * n + 50, n), upto=100 * n + 100, tentative=True)
        orders += [early, RollBack(False), step((100 * n, n), upto=100 * n + 50), EndRedo(), SetMark(None, overlaid=True)]
    log = Log(orders)
    host = host_over(log, snapshot_bytes=1)
    for first in range(2, len(orders), 5):
        assert host.host.host.live is not None or first == 2
        host.obey(list(log.read(first if first > 2 else 0, first + 5)), lambda number, state: None)
    assert len(log.snapshots) >= 5
    answers = obey_all(host_over(Log(orders)), log)
    before = max(at for at in log.snapshots if at < len(orders) - 4)
    again = host_over(log, snapshot_bytes=1 << 30)
    assert obey_all(again, log, before + 1) == answers[before + 1 :]
    assert again.rebuilt == 1


def test_processes_that_do_not_live_long_leave_snapshots_all_the_same() -> None:
    """Else each would obey all that ever was, and no order could be let go."""
    steps = [step((100 * n, n), upto=100 * (n + 1)) for n in range(40)]
    log = Log([Begin(1, Mode.OVERLAY_REDO, None, None), *steps])
    size = sum(map(len, log.orders[:10]))
    for offset, order in enumerate(log.orders):
        host_over(log, size).obey([(offset, order)], lambda number, state: None)
    assert len(log.snapshots) >= 3


@pytest.mark.parametrize(
    "order", [*life(Mode.CHECKPOINT_REDO), Copy(None), Copy(3), DropLive(), Begin(1, Mode.UNDO_REDO, ("x", 3), None)]
)
def test_an_order_is_itself_again_after_its_bytes(order: Order) -> None:
    place, decoded = decode_order(encode_order(Place(1, 5), order), INPUTS)
    assert place == Place(1, 5)
    if isinstance(order, Step) and isinstance(decoded, Step):
        assert decoded.batches["a"].equals(order.batches["a"])
        order, decoded = replace(order, batches={}), replace(decoded, batches={})
    assert decoded == order


def test_an_answer_is_itself_again_after_its_bytes() -> None:
    rows = RemoteHost(FRAGMENT, no_checkpoint)
    rows.take(encode_order(Place(1, 1), Begin(1, Mode.OVERLAY_REDO, None, None)), None)
    data = rows.take(encode_order(Place(1, 2), step((100, 1), upto=1_000)), None)
    assert data is not None
    place, answer = decode_answer(data, OUTPUTS)
    assert encode_answer(place, answer) == data and answer.outputs["n"].num_rows == 1
    failed = Answer(failed="it broke")
    assert decode_answer(encode_answer(place, failed), OUTPUTS) == (place, failed)


@pytest.mark.parametrize("damage", [b"", b"nonsense", encode_answer(Place(1, 1), Answer())])
def test_other_bytes_are_no_order(damage: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_order(damage, INPUTS)


@pytest.mark.parametrize("lost_at", range(1, 10))
def test_a_copy_that_was_made_ahead_is_what_a_rollback_returns_to(lost_at: int) -> None:
    """MARK copies nothing then; and the copy outlives the process that made it, with snapshots and without."""
    orders = life(Mode.CHECKPOINT_REDO)
    at_mark = Log(orders)
    [mark] = [at for at, order in enumerate(orders) if isinstance(order, SetMark)]
    log = Log([*orders[:mark], Copy(7), SetMark(None), *orders[mark + 1 :]])
    steps = [decode_answer(answer, OUTPUTS)[1].outputs for answer in obey_all(host_over(at_mark), at_mark)]
    for snapshot_bytes in (1, 1 << 30):
        first = host_over(log, snapshot_bytes).obey(list(log.read(0, lost_at)), lambda number, state: None)
        rest = obey_all(host_over(log, snapshot_bytes), log, lost_at)
        found = [decode_answer(answer, OUTPUTS)[1].outputs for answer in [*first, *rest]]
        assert [made for made in found if made] == [made for made in steps if made]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("lost_at", range(1, 9))
def test_a_state_lost_anywhere_is_made_anew(mode: Mode, lost_at: int) -> None:
    """From the log alone, and from snapshots after every order that leaves a single state."""
    log = Log(life(mode))
    expected = obey_all(host_over(log), log)
    assert len(expected) == len(log.orders)
    for snapshot_bytes in (1 << 30, 1):
        log.snapshots.clear()
        first = host_over(log, snapshot_bytes)
        answers = [
            answer for offset, data in log.read(0, lost_at) for answer in first.obey([(offset, data)], lambda n, s: None)
        ]
        answers += obey_all(host_over(log), log, lost_at)
        assert answers == expected
        assert bool(log.snapshots) is (snapshot_bytes == 1)


# What no record of a log holds

PART = 100


def whole(records: Iterable[bytes]) -> list[bytes]:
    parts = Parts()
    return [data for record in records if (data := parts.take(record)) is not None]


@pytest.mark.parametrize("mode", list(Mode))
def test_orders_and_answers_in_parts_say_what_whole_ones_say_wherever_a_state_is_lost(mode: Mode) -> None:
    plain, log = Log(life(mode)), Log(life(mode), part_bytes=PART)
    expected = obey_all(host_over(plain), plain)
    assert max(map(len, log.orders)) < PART + 200 < max(map(len, plain.orders))
    answers = obey_all(host_over(log, part_bytes=PART), log)
    assert max(map(len, answers)) < PART + 200 < max(map(len, expected))
    assert whole(answers) == expected
    for lost_at in range(1, len(log.orders)):
        log.snapshots.clear()
        first = host_over(log, 1, PART)
        given = [record for at, data in log.read(0, lost_at) for record in first.obey([(at, data)], lambda n, s: None)]
        assert whole(given + obey_all(host_over(log, 1, PART), log, lost_at)) == expected
        assert log.snapshots, "they are made, between orders"


def test_what_another_writer_or_a_life_that_is_over_has_left_of_parts_is_passed_over() -> None:
    data = [bytes([number]) * 250 for number in range(4)]
    first, second, third = (in_parts(Place(1, number), data[number], PART) for number in (1, 2, 3))
    assert [len(records) for records in (first, second, third)] == [3, 3, 3]
    # Two drivers say the same, one behind the other.
    assert whole([*first[:2], first[0], first[2], first[1], second[0], first[2], *second[1:]]) == [data[1], data[2]]
    # One has died in the midst of it, and its successor begins again.
    assert whole([*second[:2], *first, *second]) == [data[2]]
    # Of the second order the rest never comes; whole records pass meanwhile.
    assert whole([*second[:2], b"small", *third]) == [b"small", data[3]]
    begun = in_parts(Place(2, 1), data[0], PART)
    assert whole([*third[:2], begun[0], third[2], *begun[1:]]) == [data[0]], "the life before ends late"


def test_a_damaged_part_is_refused() -> None:
    part = in_parts(Place(1, 1), bytes(250), PART)[1]
    assert is_part(part) and not is_part(b"an order")
    for damaged in (part[:-1], part[:-1] + b"x"):
        with pytest.raises(CorruptError):
            Parts().take(damaged)
        with pytest.raises(CorruptError):
            is_part(damaged)


def test_a_batch_that_is_given_again_is_answered_again_alike() -> None:
    log = Log(life(Mode.UNDO_REDO))
    host = host_over(log)
    assert obey_all(host, log) == obey_all(host, log)
    assert host.rebuilt == 2


def test_a_host_tells_why_its_state_was_made_anew_and_how_many_orders_that_took() -> None:
    log = Log(life(Mode.UNDO_REDO))
    host = host_over(log)
    assert host.seek(4) == Rebuild(Cause.NEW, 4)
    assert host.seek(4) is None
    assert host.rows == 0, "rows that are given again are not counted"
    host.obey(list(log.read(4, 5)), lambda number, state: None)
    assert host.rows == 1
    assert host.seek(2) == Rebuild(Cause.REPEATED, 2)
    log.snapshots = {6: b"damaged"}
    assert host.seek(9) == Rebuild(Cause.MISSED, 9)
    assert host.rebuilt == 3


def test_after_a_batch_that_broke_off_the_state_is_made_anew_wherever_the_next_begins() -> None:
    log = Log(life(Mode.UNDO_REDO))
    host = host_over(log)
    host.seek(3)
    log.read = lambda first, end: iter(lost(first, end))  # type: ignore[method-assign]

    def lost(first: int, end: int) -> Iterable[tuple[int, bytes]]:
        yield from Log.read(log, first, 1)
        raise Unreachable("away")

    with pytest.raises(Unreachable):
        host.seek(2)
    del log.read
    assert host.seek(3) == Rebuild(Cause.BROKEN_OFF, 3)


def test_repeats_in_the_log_and_orders_of_the_dead_are_not_obeyed() -> None:
    host = RemoteHost(FRAGMENT, no_checkpoint)
    begin, again = (encode_order(Place(life, 1), Begin(life, Mode.OVERLAY_REDO, None, None)) for life in (2, 2))
    assert host.take(begin, None) is not None
    assert host.take(again, None) is None
    assert host.take(encode_order(Place(1, 2), step((100, 1), upto=1_000)), None) is None


def test_without_the_orders_before_it_a_host_says_that_it_is_lost() -> None:
    log = Log(life(Mode.OVERLAY_REDO), start=2)
    answers = [decode_answer(data, OUTPUTS)[1] for data in obey_all(host_over(log), log, 2)]
    assert answers and all(answer.failed is not None and "is lost" in answer.failed for answer in answers)
    log.orders.append(encode_order(Place(2, 1), Begin(2, Mode.OVERLAY_REDO, None, None)))
    [healed] = obey_all(host_over(log), log, len(log.orders) - 1)
    assert decode_answer(healed, OUTPUTS)[1].failed is None


def test_a_checkpoint_that_is_gone_ends_the_life_by_name() -> None:
    host = RemoteHost(FRAGMENT, no_checkpoint)
    data = host.take(encode_order(Place(1, 1), Begin(1, Mode.OVERLAY_REDO, ("main.r0.0", 4), None)), None)
    assert data is not None
    assert "main.r0.0" in str(decode_answer(data, OUTPUTS)[1].failed)


def test_what_an_operator_raises_comes_back_as_a_traceback() -> None:
    host = RemoteHost(FRAGMENT, no_checkpoint)
    host.take(encode_order(Place(1, 1), Begin(1, Mode.OVERLAY_REDO, None, None)), None)
    data = host.take(encode_order(Place(1, 2), step((100, 1), upto=1_000, tentative=True)), None)
    assert data is not None
    failed = decode_answer(data, OUTPUTS)[1].failed
    assert failed is not None and "a tentative step comes after a MARK" in failed and "Traceback" in failed


# The instance's side


def engine() -> Engine:
    return Engine(3, None, limit_bytes=1_000, silence_us=300_000, delay_threshold_us=3_000_000)


def hand(subject: Engine, order: Order, now: int = 0) -> Consequence:
    """Give an order; what is to follow from its answer."""
    then = EmitRows(replace(order, batches={})) if isinstance(order, Step) else EndCorrection()
    effects: list[Effect] = []
    assert subject.hand(order, now, effects, then, is_timed=True) is None
    assert [type(effect) for effect in effects] == [Obey]
    return then


def test_consequences_follow_in_order_and_once() -> None:
    subject = engine()
    first, second = hand(subject, step(upto=1)), hand(subject, EndRedo())
    assert [order.then for order in subject.under_way] == [first, second]
    assert subject.take(Place(3, 1), Answer(), 400_000) == first
    assert subject.take(Place(3, 1), Answer(), 410_000) is None
    assert subject.take(Place(2, 2), Answer(), 410_000) is None
    assert subject.take(Place(3, 2), Answer(), 500_000) == second


def test_a_few_short_orders_do_not_yet_tell_how_long_one_takes() -> None:
    subject = engine()
    for number in range(1, LEAST_SAMPLES + 1):
        assert subject.latency_us == LATENCY_GUESS_US * 3 // 2
        hand(subject, step(upto=number))
        subject.take(Place(3, number), Answer(), 40_000)
    assert subject.latency_us == 60_000


def test_a_missing_answer_and_a_failed_host_end_the_life() -> None:
    subject = engine()
    hand(subject, step(upto=1))
    hand(subject, step(upto=2))
    with pytest.raises(HostFailed, match="lost"):
        subject.take(Place(3, 2), Answer(failed="it is lost"), 1)
    with pytest.raises(Exception, match="before order 1"):
        subject.take(Place(3, 2), Answer(), 1)


def test_a_failure_names_the_rows_that_the_order_was_about() -> None:
    subject = engine()
    subject.hand(step(upto=1), 0, [], what="The rows are a/0 5..7.")
    with pytest.raises(HostFailed, match=r"(?s)Traceback.*a/0 5\.\.7"):
        subject.take(Place(3, 1), Answer(failed="Traceback: it broke"), 1)


def test_a_dropped_live_branch_is_not_shown() -> None:
    subject = engine()
    hand(subject, step(upto=1, tentative=True))
    subject.drop_live(0, [])
    assert subject.take(Place(3, 1), Answer(), 1) is None


def test_a_host_that_stops_is_noticed_and_one_that_is_slow_is_waited_for() -> None:
    subject = engine()
    hand(subject, step(upto=1), now=0)
    subject.take(Place(3, 1), Answer(), 200_000)
    hand(subject, step(upto=2), now=1_000_000)
    assert not subject.is_silent(2_100_000)
    assert subject.is_silent(2_300_000)
    subject.discount(500_000)
    assert not subject.is_silent(2_300_000)


def test_a_slow_host_is_not_waited_for_until_x_is_over() -> None:
    subject = engine()
    for number, took_us in enumerate((2_000_000, 800_000, 800_000), start=1):  # cold at first
        hand(subject, step(upto=number), now=0)
        subject.take(Place(3, number), Answer(), took_us)
    hand(subject, step(upto=4), now=3_000_000)
    assert not subject.is_silent(4_590_000), "twice what it usually takes"
    assert subject.is_silent(4_610_000)
    subject.delay_threshold_us = 6_000_000
    assert not subject.is_silent(5_990_000), "half of X"
    assert subject.is_silent(6_010_000)


def test_the_time_in_which_a_host_was_away_is_not_what_an_order_takes() -> None:
    subject = engine()
    for number in range(1, LEAST_SAMPLES + 1):
        hand(subject, step(upto=number), now=0)
        subject.take(Place(3, number), Answer(), 100_000)
    hand(subject, step(upto=20), now=1_000_000)
    hand(subject, step(upto=21), now=1_500_000)
    subject.take(Place(3, LEAST_SAMPLES + 1), Answer(), 60_000_000)
    subject.take(Place(3, LEAST_SAMPLES + 2), Answer(), 60_010_000)
    assert subject.latency_us == 150_000
    hand(subject, step(upto=22), now=61_000_000)
    assert subject.is_silent(61_700_000), "the next time it is missed as soon as this time"
