"""SOutput: ids, repeats, one UNDO, REC_DONE, held-back corrections, and a producer's lives (R1-R4, R18, R21, R25)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from boreal.model.frames import INFINITY, Anchor, Boundary, Data, LogId, Origin, RecDone, Start, State, Undo
from boreal.model.partition import partition_of
from boreal.query.plan import Edge
from reconcile.events import Append
from reconcile.soutput import SOutput
from sunion.steps import Step
from tests.harness import SCHEMA, batch_of


def soutput_of(partitions: int = 1, started: bool = True) -> SOutput:
    edge = Edge("out", "op", SCHEMA, 1, partitions, ("v",) if partitions > 1 else (), False)
    output = SOutput((edge,), 0, Origin("r0", 1), 10)
    if started:
        output.start({}, {}, -1, {})
    return output


def emit(
    output: SOutput,
    times: Sequence[int],
    upto: int,
    tentative: bool = False,
    muted: bool = False,
    v: Sequence[int] | None = None,
) -> list[Append]:
    step = Step({}, upto, tentative, muted, ((INFINITY, 77),), ("b",) if tentative else (), "why" if tentative else "")
    return output.emit(
        {"op": batch_of(times, v)}, step, State.STABLE, (), 1234, lambda ids: Anchor(upto, upto, ids, (("a/0", 3),))
    )


def short(effects: list[Append]) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = []
    for effect in effects:
        match effect.frame:
            case Data() as data:
                kind = "tentative" if data.tentative else "stable"
                told.append((kind, data.first_id, data.batch.column(0).to_pylist(), data.epoch))
            case Boundary() as boundary:
                told.append(("boundary", boundary.time, boundary.tentative))
            case Undo() as undo:
                told.append(("undo", undo.last_id, undo.epoch))
            case RecDone():
                told.append(("rec_done",))
            case Start() as start:
                told.append(("start", start.epoch))
    return told


def test_stable_rows_are_numbered_and_followed_by_the_boundary_with_an_anchor() -> None:
    output = soutput_of()
    assert short(emit(output, [1, 2], 10)) == [("stable", 0, [1, 2], 0), ("boundary", 10, False)]
    effects = emit(output, [11], 20)
    assert short(effects) == [("stable", 2, [11], 0), ("boundary", 20, False)]
    boundary = effects[-1].frame
    assert isinstance(boundary, Boundary) and boundary.anchor == Anchor(20, 20, (("out/0", 3),), (("a/0", 3),))
    assert boundary.ingest == 77 and boundary.sent == 1234


def test_rows_that_no_record_holds_are_several_frames() -> None:
    """Rows here take 16 bytes. Stable ones are cut anywhere, tentative ones between buckets, which readers ask for (R23)."""
    whole, cut = soutput_of(), soutput_of()
    cut.frame_bytes = 16 * 3
    times = [1, 2, 3, 4, 11, 12, 13, 14, 15, 21]
    for tentative in (False, True):
        upto, given = (100, [100 + time for time in times]) if tentative else (30, times)
        upto += 30 if tentative else 0
        [expected] = [e.frame for e in emit(whole, given, upto, tentative) if isinstance(e.frame, Data)]
        frames = [e.frame for e in emit(cut, given, upto, tentative) if isinstance(e.frame, Data)]
        assert pa.concat_batches([frame.batch for frame in frames]) == expected.batch
        sizes = [frame.batch.num_rows for frame in frames]
        assert [frame.first_id for frame in frames] == [expected.first_id + sum(sizes[:at]) for at in range(len(sizes))]
        assert frames[-1].t_max == expected.t_max
        if tentative:
            assert sizes == [4, 5, 1]
            assert [frame.t_max for frame in frames] == [110, 120, 130]
        else:
            assert max(sizes) <= 3
    assert cut.next_ids() == whole.next_ids()


def test_every_frame_says_which_bucket_caused_it() -> None:
    """R4."""
    data = emit(soutput_of(), [1, 15], 20)[0].frame
    assert isinstance(data, Data) and data.t_max == 20


def test_tentative_rows_take_the_ids_after_the_last_stable_one_and_name_what_they_lack() -> None:
    output = soutput_of()
    emit(output, [1], 10)
    effects = emit(output, [11], 20, tentative=True)
    assert short(effects) == [("tentative", 1, [11], 0), ("boundary", 20, True)]
    assert short(emit(output, [21], 30, tentative=True))[0] == ("tentative", 2, [21], 0)
    data, boundary = effects[0].frame, effects[1].frame
    assert isinstance(data, Data) and isinstance(boundary, Boundary)
    assert (data.missing, data.cause, boundary.missing, boundary.anchor) == (("b",), "why", ("b",), None)


def test_a_correction_is_one_undo_the_stable_version_and_rec_done() -> None:
    output = soutput_of()
    emit(output, [1], 10)
    emit(output, [11, 12], 20, tentative=True)
    assert short(output.undo("why", defer=False)) == [("undo", 0, 1)]
    assert short(emit(output, [11, 12, 13], 20)) == [("stable", 1, [11, 12, 13], 1), ("boundary", 20, False)]
    assert short(output.end_correction()) == [("rec_done",)]
    assert output.end_correction() == []


def test_without_tentative_output_there_is_nothing_to_undo() -> None:
    output = soutput_of()
    emit(output, [1], 10)
    assert output.undo("why", defer=False) == [] and output.epoch == 0


def test_muted_steps_write_nothing_and_count_nothing() -> None:
    output = soutput_of()
    assert emit(output, [1], 10, muted=True) == []
    assert output.next_ids() == (("out/0", 0),)


def test_repeats_of_a_rolled_back_state_are_dropped_by_id() -> None:
    """A life that begins before the end of its own log: ids 0 to 2 are logged, the state has made none of them."""
    output = soutput_of(started=False)
    output.start({"out/0": 0}, {"out/0": 3}, 4, {})
    assert short(emit(output, [1, 2], 10)) == [("boundary", 10, False)]
    assert short(emit(output, [11, 12], 20)) == [("stable", 3, [12], 5), ("boundary", 20, False)]


def test_repeats_are_dropped_over_a_second_mark_and_rollback() -> None:
    """R18: SOutput goes on waiting for the same last duplicate."""
    output = soutput_of(started=False)
    output.start({"out/0": 0}, {"out/0": 3}, 4, {})
    emit(output, [1], 10)
    assert short(emit(output, [11], 20, tentative=True))[0] == ("tentative", 3, [11], 5)
    assert short(output.undo("why", defer=False)) == [("undo", 2, 6)]
    assert short(emit(output, [11, 12], 20)) == [("boundary", 20, False)], "ids 1 and 2 are there already"
    assert short(emit(output, [21], 30))[0] == ("stable", 3, [21], 6)


def test_a_new_failure_in_mid_correction_forces_rec_done_before_its_first_tentative_row() -> None:
    """R18, and DPC, Analysis."""
    output = soutput_of()
    emit(output, [1], 10, tentative=True)
    output.undo("why", defer=False)
    emit(output, [1], 10)
    assert short(emit(output, [11], 20, tentative=True)) == [
        ("rec_done",),
        ("tentative", 1, [11], 1),
        ("boundary", 20, True),
    ]


def test_beside_a_live_branch_corrections_are_held_back_until_they_are_complete() -> None:
    """R17, R21: tentative rows stay visible and go on; then one UNDO, the corrections in the new epoch, REC_DONE."""
    output = soutput_of()
    emit(output, [1], 10)
    emit(output, [11], 20, tentative=True)
    assert output.undo("why", defer=True) == []
    assert emit(output, [11, 12], 20) == []
    assert short(emit(output, [21], 30, tentative=True)) == [("tentative", 2, [21], 0), ("boundary", 30, True)]
    assert short(output.end_correction()) == [
        ("undo", 0, 1),
        ("stable", 1, [11, 12], 1),
        ("boundary", 20, False),
        ("rec_done",),
    ]
    assert short(emit(output, [21], 30, tentative=True))[0] == ("tentative", 3, [21], 1)


def test_corrections_that_outgrow_memory_are_shown_at_once_and_rec_done_waits_for_the_rest() -> None:
    """R21: a reader is not told that a correction is complete before it is."""
    output = soutput_of()
    emit(output, [1], 10)
    emit(output, [11], 20, tentative=True)
    output.undo("why", defer=True)
    emit(output, [11, 12], 20)
    assert [kind for kind, *_ in short(output.show_deferred())] == ["undo", "stable", "boundary"]
    assert short(emit(output, [21], 30))[0] == ("stable", 3, [21], 1)
    assert short(output.end_correction()) == [("rec_done",)]


def test_the_heartbeat_repeats_the_visible_stable_boundary_and_tells_the_state() -> None:
    output = soutput_of()
    emit(output, [1], 10)
    output.undo("", defer=True)
    emit(output, [11], 20)
    [effect] = output.heartbeat(State.STABILIZATION, (), 99)
    boundary = effect.frame
    assert isinstance(boundary, Boundary)
    assert (boundary.time, boundary.tentative, boundary.state, boundary.sent) == (10, False, State.STABILIZATION, 99)


def test_rows_go_to_the_partition_of_their_key_and_control_frames_to_all_with_its_own_ids() -> None:
    """R1."""
    output = soutput_of(partitions=2)
    rows = batch_of([1, 2, 3, 4], [0, 1, 2, 3])
    homes = partition_of(rows, ["v"], 2).tolist()
    assert set(homes) == {0, 1}, "the keys of this test go both ways"
    effects = emit(output, [1, 2, 3, 4], 10, v=[0, 1, 2, 3])
    for at in (0, 1):
        log = LogId("out", "r0", at)
        [data, boundary] = [effect.frame for effect in effects if effect.log == log]
        assert isinstance(data, Data) and isinstance(boundary, Boundary)
        assert data.batch.column("v").to_pylist() == [v for v in range(4) if homes[v] == at]
    emit(output, [11], 20, tentative=True, v=[0])
    undos = {effect.log.partition: effect.frame.last_id for effect in output.undo("", False) if isinstance(effect.frame, Undo)}
    assert undos == {at: homes.count(at) - 1 for at in (0, 1)}
    assert [effect.log.partition for effect in output.end_correction()] == [0, 1]


@pytest.mark.parametrize("made", [3, 4])
def test_nothing_tentative_comes_where_the_life_before_was_stable(made: int) -> None:
    """I6: also where its log has no row, and so no id that would tell."""
    output = soutput_of(started=False)
    output.start({"out/0": made}, {"out/0": 4}, 0, {"out/0": 29})
    assert short(emit(output, [11, 29], 30, tentative=True)) == [("boundary", 30, True)]
    assert short(emit(output, [30], 40, tentative=True)) == [("tentative", 4, [30], 1), ("boundary", 40, True)]


def test_a_new_life_begins_with_start_in_every_partition_and_a_new_epoch() -> None:
    """R25."""
    output = soutput_of(partitions=2, started=False)
    effects = output.start({"out/0": 4, "out/1": 2}, {"out/0": 4, "out/1": 2}, 7, {})
    assert short(effects) == [("start", 8), ("start", 8)]
    assert output.next_ids() == (("out/0", 4), ("out/1", 2))


def test_anchors_tell_what_the_state_has_made_and_not_what_the_log_holds() -> None:
    """R26: a life that begins there makes the rows between them again."""
    output = soutput_of(started=False)
    output.start({"out/0": 1}, {"out/0": 3}, 0, {})
    assert output.next_ids() == (("out/0", 1),)
    [effect] = emit(output, [1], 10)
    boundary = effect.frame
    assert isinstance(boundary, Boundary) and boundary.anchor is not None and boundary.anchor.next_ids == (("out/0", 2),)


def test_each_bucket_of_a_step_travels_with_an_ingest_of_its_own() -> None:
    """R8: else all of them would be as young as the last one, and X be counted again downstream."""
    output, ingest = soutput_of(), ((10, 100), (20, 900))
    step = Step({}, 20, False, False, ingest)
    data, boundary = (
        effect.frame
        for effect in output.emit({"op": batch_of([1, 11])}, step, State.STABLE, (), 1234, lambda ids: Anchor(20, 20, ids, ()))
    )
    assert isinstance(data, Data) and data.ingest == ingest
    assert isinstance(boundary, Boundary) and boundary.ingest == 900


def test_a_row_on_a_buckets_start_is_of_that_bucket() -> None:
    """R4."""
    [data, _] = (effect.frame for effect in emit(soutput_of(), [20], 30))
    assert isinstance(data, Data) and data.t_max == 30
