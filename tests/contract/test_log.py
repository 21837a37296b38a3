"""What every log promises, each promise by example and all together against a list; and the file log's crashes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.errors import CorruptError, ProtocolError
from boreal.model.frames import Anchor, Boundary, Data, Frame, LogId, Origin, RecDone, Start, Undo
from embedded.file_log import FileLog
from logs.log import Log, TrimmedError
from tests.thoroughness import some

ID = LogId("departures.late", "r0", 2)
ALL = 1 << 30
IDLE = 3
"""How many frames of an idle log are kept, where a test says so."""


def data(first_id: int, rows: int, tentative: bool = False, incarnation: int = 1) -> Data:
    ids = list(range(first_id, first_id + rows))
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], names=["time"])
    return Data(Origin("r0", incarnation), 0, first_id, batch, tentative, ((first_id + rows, 5),), first_id + rows)


def boundary(time: int, tentative: bool = False, anchored: bool = False, incarnation: int = 1) -> Boundary:
    anchor = Anchor(time, time - 10, ((ID.key, time),), (("jfk/0", time),)) if anchored else None
    return Boundary(Origin("r0", incarnation), 0, time, tentative, 5, 6, anchor=anchor)


def undo(last_id: int, incarnation: int = 1) -> Undo:
    return Undo(Origin("r0", incarnation), 1, last_id)


def rec_done(incarnation: int = 1) -> RecDone:
    return RecDone(Origin("r0", incarnation), 1)


def start(incarnation: int) -> Start:
    return Start(Origin("r0", incarnation), 0)


def fill(log: Log, *frames: Frame) -> Log:
    for frame in frames:
        log.append(frame)
    return log


def now_and_reopened(logs) -> Iterator[Log]:
    yield logs.store.open(ID)
    yield logs.reopen().open(ID)


def offsets(log: Log, offset: int = 0, skip_revoked: bool = True) -> list[int]:
    return [place for place, _ in log.read(offset, ALL, skip_revoked=skip_revoked)]


# By example


def test_a_new_log_is_empty(logs):
    log = logs.store.open(ID)
    assert (log.id, log.start, log.end, log.next_stable_id, log.last_incarnation) == (ID, 0, 0, 0, 0)
    assert log.read(0, 10) == []
    assert log.last_anchor() is None
    assert log.tail() is None
    assert log.offset_after(-1) == 0


def test_frames_come_back_at_their_offsets_also_after_reopening(logs):
    frames = [start(1), data(0, 3), boundary(3), data(3, 2, tentative=True), undo(2), rec_done()]
    log = logs.store.open(ID)
    assert [log.append(frame) for frame in frames] == list(range(6))
    log.sync()
    for log in now_and_reopened(logs):
        assert log.read(0, ALL) == list(enumerate(frames))
        assert log.read(2, 2) == [(2, frames[2]), (3, frames[3])]
        assert log.read(6, 5) == []
        assert log.end == 6
    assert log.append(boundary(4)) == 6


def test_a_reader_beyond_the_end_has_seen_what_the_log_lost(logs):
    log = fill(logs.store.open(ID), start(1))
    with pytest.raises(ProtocolError, match="ends at offset 1"):
        log.read(2, 1)


def test_max_bytes_bounds_a_read_but_never_to_nothing(logs):
    log = fill(logs.store.open(ID), data(0, 1000), data(1000, 1000), data(2000, 1000))
    assert len(log.read(0, 10, max_bytes=1)) == 1
    assert len(log.read(0, 10, max_bytes=2 * log.nbytes // 3 + 100)) == 2
    assert len(log.read(0, 10, max_bytes=log.nbytes)) == 3


def test_nbytes_grows_with_what_is_kept(logs):
    log = logs.store.open(ID)
    empty = log.nbytes
    log.append(data(0, 1000))
    assert 8000 < log.nbytes - empty < 12000


def test_a_store_keeps_logs_apart_and_lists_them(logs):
    ids = [LogId("a/b @ c%", "", 0), ID, LogId(ID.stream, "r1", 2), LogId("..", "é", 11)]
    for number, log_id in enumerate(ids):
        fill(logs.store.open(log_id), start(number + 1))
    assert logs.store.open(ID) is logs.store.open(ID)
    assert logs.store.ids() == sorted(ids)
    store = logs.reopen()
    assert store.ids() == sorted(ids)
    assert [store.open(log_id).last_incarnation for log_id in ids] == [1, 2, 3, 4]


def test_offset_after_finds_the_frame_that_holds_the_next_row(logs):
    log = fill(logs.store.open(ID), start(1), data(0, 10), boundary(10), data(10, 10), boundary(20))
    assert [log.offset_after(stable_id) for stable_id in (-1, 0, 8)] == [1, 1, 1]
    assert [log.offset_after(stable_id) for stable_id in (9, 18)] == [3, 3]


def test_offset_after_the_last_row_brings_the_boundaries_and_the_tentative_suffix(logs):
    log = fill(logs.store.open(ID), data(0, 10), boundary(10), boundary(11), data(10, 3, tentative=True))
    assert log.offset_after(9) == 1
    assert log.offset_after(50) == 1
    fill(log, undo(9), data(10, 5))
    assert log.offset_after(9) == 5


def test_offset_after_counts_no_tentative_row(logs):
    log = fill(logs.store.open(ID), data(0, 4, tentative=True), boundary(4, tentative=True))
    assert log.offset_after(-1) == 0
    fill(log, undo(-1), data(0, 2))
    assert log.offset_after(-1) == 3


def test_rows_that_the_writer_skipped_are_not_passed_over_in_silence(logs):
    log = fill(logs.store.open(ID), data(0, 10), data(50, 10))
    assert log.offset_after(8) == 0
    with pytest.raises(TrimmedError):
        log.offset_after(9)
    assert log.offset_after(49) == 1


def test_a_repeated_stable_frame_changes_nothing(logs):
    log = fill(logs.store.open(ID), data(0, 10), boundary(10), data(0, 10), data(5, 10), data(0, 10))
    assert log.next_stable_id == 15
    assert log.offset_after(4) == 0
    assert log.offset_after(9) == 3
    assert log.offset_after(14) == 4


def test_undo_revokes_the_tentative_frames_before_it(logs):
    tentative = [data(3, 2, tentative=True), boundary(5, tentative=True)]
    log = fill(logs.store.open(ID), data(0, 3), boundary(3), *tentative)
    assert offsets(log) == [0, 1, 2, 3]
    fill(log, undo(2), data(3, 4), rec_done(), data(7, 1, tentative=True))
    assert offsets(log) == [0, 1, 4, 5, 6, 7]
    assert offsets(log, skip_revoked=False) == list(range(8))
    assert [place for place, _ in log.read(1, 2, skip_revoked=True)] == [1, 4]
    assert offsets(logs.reopen().open(ID)) == [0, 1, 4, 5, 6, 7]


def test_undo_leaves_tentative_rows_up_to_its_last_id(logs):
    log = fill(logs.store.open(ID), data(0, 2, tentative=True), data(2, 2, tentative=True), undo(1))
    assert offsets(log) == [0, 2]


def test_a_new_life_revokes_the_tentative_suffix_and_fences_the_old(logs):
    log = fill(logs.store.open(ID), start(1), data(0, 3), data(3, 2, tentative=True), start(2))
    assert offsets(log) == [0, 1, 3]
    zombie = [data(3, 9), boundary(99, anchored=True), undo(2), start(2), start(1), data(12, 1, tentative=True)]
    fill(log, *zombie)
    for reopened in now_and_reopened(logs):
        assert offsets(reopened) == [0, 1, 3]
        assert reopened.next_stable_id == 3
        assert reopened.last_anchor() is None
        assert reopened.tail() == start(2)
        assert reopened.last_incarnation == 2
        assert reopened.offset_after(2) == 2


def test_recovery_finds_the_anchor_and_the_newest_control_frame(logs):
    log = fill(logs.store.open(ID), start(1), data(0, 3), boundary(3, anchored=True), boundary(4))
    fill(log, data(3, 1, tentative=True), boundary(5, tentative=True, anchored=True))
    for reopened in now_and_reopened(logs):
        assert reopened.last_anchor() == boundary(3, anchored=True).anchor
        assert reopened.tail() == boundary(5, tentative=True, anchored=True)
        assert (reopened.next_stable_id, reopened.last_incarnation) == (3, 1)


def test_trim_keeps_later_rows_and_says_what_is_gone(logs):
    log = fill(logs.store.open(ID), start(1), *(data(10 * n, 10) for n in range(5)), boundary(50))
    before = log.nbytes
    log.trim(24)
    assert log.start <= 3
    assert log.offset_after(19) == 3
    assert log.read(3, 1)[0][1] == data(20, 10)
    if logs.trims_each_frame:
        assert log.start == 3
        assert log.nbytes < before
        with pytest.raises(TrimmedError, match="begins at 3"):
            log.read(2, 1)
        with pytest.raises(TrimmedError):
            log.offset_after(18)


def test_trim_keeps_the_last_anchor_and_what_follows(logs):
    log = fill(logs.store.open(ID), data(0, 5), boundary(5, anchored=True), data(5, 5), boundary(10))
    log.trim(9)
    assert log.start <= 1
    assert log.last_anchor() == boundary(5, anchored=True).anchor
    assert offsets(log, 1) == [1, 2, 3]


def test_trim_without_an_anchor_keeps_the_last_control_frame(logs):
    log = fill(logs.store.open(ID), boundary(0), data(0, 5))
    log.trim(4)
    assert logs.reopen().open(ID).tail() == boundary(0)


@pytest.mark.parametrize("rows", [0, 5])
@patch("logs.index.IDLE_FRAMES", IDLE)
def test_an_idle_log_stays_small_and_a_new_life_finds_its_place(logs, rows):
    first = [data(0, rows, incarnation=3)] if rows else []
    log = fill(logs.store.open(ID), start(3), *first, boundary(5, anchored=True, incarnation=3))
    for time in range(6, 40):
        fill(log, boundary(time, anchored=time % 10 == 0, incarnation=3))
        log.trim(rows - 1)
        if time % 13 == 0:
            log = logs.reopen().open(ID)
    if logs.trims_each_frame:
        assert log.end - log.start == 39 - 30 + 1
    for log in now_and_reopened(logs):
        assert log.last_anchor() == boundary(30, anchored=True).anchor
        assert (log.next_stable_id, log.last_incarnation, log.tail()) == (rows, 3, boundary(39, incarnation=3))
        assert log.offset_after(rows - 1) <= log.end - 10
    log.append(data(rows, 2, incarnation=3))
    assert log.read(log.offset_after(rows - 1), ALL)[-1][1] == data(rows, 2, incarnation=3)


@patch("logs.index.IDLE_FRAMES", IDLE)
def test_what_may_yet_be_revoked_is_not_trimmed(logs):
    log = fill(logs.store.open(ID), start(1), data(0, 5), data(5, 2, tentative=True))
    fill(log, *(boundary(time, tentative=True) for time in range(7, 20)))
    log.trim(4)
    assert log.start <= 2


def test_trim_twice_or_of_nothing_is_harmless(logs):
    log = fill(logs.store.open(ID), boundary(0))
    log.trim(100)
    assert (log.start, offsets(log)) == (0, [0])
    fill(log, data(0, 5), data(5, 5), boundary(10))
    for stable_id in (4, 4, -1):
        log.trim(stable_id)
    assert log.offset_after(4) == 2


def test_what_trimmed_frames_said_is_known_after_reopening(logs):
    log = fill(logs.store.open(ID), start(7), data(0, 5, incarnation=7), data(5, 5, incarnation=7), boundary(10, incarnation=7))
    log.trim(9)
    log = logs.reopen().open(ID)
    assert (log.end, log.next_stable_id, log.last_incarnation) == (4, 10, 7)
    assert log.offset_after(9) == 3


# All together, against a list


@dataclass
class Model:
    """A log as a list of frames that is searched from end to end for every question."""

    frames: list[Frame] = field(default_factory=list)
    start: int = 0

    def live(self, begin: int = 0) -> Iterator[tuple[int, Frame]]:
        """The frames that are not fenced."""
        last = 0
        for offset, frame in enumerate(self.frames):
            incarnation = frame.origin.incarnation
            if isinstance(frame, Start) and incarnation > last:
                last = incarnation
            elif isinstance(frame, Start) or incarnation < last:
                continue
            if offset >= begin:
                yield offset, frame

    def stable(self, begin: int = 0) -> list[tuple[int, range]]:
        return [
            (offset, range(frame.first_id, frame.first_id + frame.batch.num_rows))
            for offset, frame in self.live(begin)
            if isinstance(frame, Data) and not frame.tentative
        ]

    @property
    def next_stable_id(self) -> int:
        return max((rows.stop for _, rows in self.stable()), default=0)

    def offset_after(self, stable_id: int) -> int | None:
        """None: the row is gone."""
        for offset, rows in self.stable(self.start):
            if stable_id + 1 in rows:
                return offset
        if stable_id + 1 < self.next_stable_id:
            return None
        return max((offset + 1 for offset, _ in self.stable(self.start)), default=self.start)

    def visible(self) -> list[int]:
        return [offset for offset, frame in self.live(self.start) if not self.revoked(offset, frame)]

    def revoked(self, offset: int, frame: Frame) -> bool:
        if not isinstance(frame, (Data, Boundary)) or not frame.tentative:
            return False
        for _, later in self.live(offset + 1):
            if isinstance(later, Start) or (isinstance(later, Undo) and isinstance(frame, Boundary)):
                return True
            if isinstance(later, Undo) and isinstance(frame, Data) and frame.first_id > later.last_id:
                return True
        return False

    def controls(self) -> list[tuple[int, Frame]]:
        return [(offset, frame) for offset, frame in self.live() if not isinstance(frame, Data)]

    def anchors(self) -> list[tuple[int, Anchor]]:
        return [
            (offset, frame.anchor)
            for offset, frame in self.live()
            if isinstance(frame, Boundary) and frame.anchor and not frame.tentative
        ]

    def trim_limit(self, stable_id: int) -> int:
        done = [offset + 1 for offset, rows in self.stable() if rows[-1] <= stable_id]
        if stable_id + 1 >= self.next_stable_id:
            done.append(len(self.frames) - IDLE)
        kept = [offset for offset, _ in (self.anchors() or self.controls())[-1:]]
        kept += [offset for offset in self.visible() if getattr(self.frames[offset], "tentative", False)]
        return max(self.start, min([max(done, default=0), *kept]))


@dataclass
class Writer:
    """Makes frames that a correct producer, or one that was fenced, would write."""

    incarnation: int = 1
    next_stable: int = 0
    next_tentative: int = 0
    time: int = 0

    def frame(self, kind: str, rows: int) -> Frame:
        self.time += 1
        match kind:
            case "stable":
                if self.next_tentative > self.next_stable:
                    return self.undo()
                self.next_stable = self.next_tentative = self.next_stable + rows
                return data(self.next_stable - rows, rows, incarnation=self.incarnation)
            case "tentative":
                self.next_tentative += rows
                return data(self.next_tentative - rows, rows, tentative=True, incarnation=self.incarnation)
            case "boundary":
                return boundary(self.time, incarnation=self.incarnation)
            case "anchor":
                return boundary(self.time, anchored=True, incarnation=self.incarnation)
            case "tentative boundary":
                return boundary(self.time, tentative=True, anchored=rows > 2, incarnation=self.incarnation)
            case "undo":
                return self.undo()
            case "done":
                return rec_done(self.incarnation)
            case "start":
                self.incarnation += 1
                self.next_tentative = self.next_stable
                return start(self.incarnation)
            case _:
                return self.zombie(rows)

    def undo(self) -> Undo:
        self.next_tentative = self.next_stable
        return undo(self.next_stable - 1, self.incarnation)

    def zombie(self, choice: int) -> Frame:
        old = self.incarnation - 1
        rows: Frame = data(self.next_stable, 5, incarnation=old)
        frames = [rows, boundary(99, anchored=True, incarnation=old), undo(-1, old), start(old)]
        return frames[choice % 4]


KINDS = ["stable", "stable", "stable", "tentative", "boundary", "anchor", "tentative boundary", "undo", "done", "start"]
steps = st.tuples(st.sampled_from([*KINDS, "zombie", "trim", "trim", "reopen"]), st.integers(1, 4))


@settings(max_examples=some(200), deadline=None, derandomize=True)
@given(st.lists(steps, max_size=30))
def test_a_log_answers_as_a_list_would(fresh_logs, script):
    with closing(fresh_logs()) as logs, patch("logs.index.IDLE_FRAMES", IDLE):
        compare_with_a_list(logs, script)


def compare_with_a_list(logs, script: list[tuple[str, int]]) -> None:
    model, writer = Model(), Writer()
    log = fill(logs.store.open(ID), start(1))
    model.frames.append(start(1))
    for kind, number in script:
        if kind == "reopen":
            log = logs.reopen().open(ID)
        elif kind == "trim":
            stable_id = writer.next_stable - number
            log.trim(stable_id)
            limit = model.trim_limit(stable_id)
            least = min(limit, log.end - 1) if logs.trims_each_frame else model.start
            assert least <= log.start <= limit
            model.start = log.start
        else:
            frame = writer.frame(kind, number)
            assert log.append(frame) == len(model.frames)
            model.frames.append(frame)
    assert_alike(log, model)
    assert_alike(logs.reopen().open(ID), model)


def assert_alike(log: Log, model: Model) -> None:
    assert (log.start, log.end) == (model.start, len(model.frames))
    assert log.read(log.start, ALL) == list(enumerate(model.frames))[model.start :]
    for offset in range(log.start, log.end + 1):
        assert offsets(log, offset) == [place for place in model.visible() if place >= offset]
    for stable_id in range(-1, model.next_stable_id + 3):
        expected = model.offset_after(stable_id)
        if expected is None:
            with pytest.raises(TrimmedError):
                log.offset_after(stable_id)
        else:
            assert log.offset_after(stable_id) == expected
    assert log.next_stable_id == model.next_stable_id
    assert log.last_incarnation == max(frame.origin.incarnation for frame in model.frames)
    assert log.tail() == model.controls()[-1][1]
    assert log.last_anchor() == (model.anchors()[-1][1] if model.anchors() else None)


# Files that a crash or a bad disk left behind

FRAMES: list[Frame] = [start(1), data(0, 3), boundary(3, anchored=True), data(3, 300)]


def written(directory: Path, segment_bytes: int = 1 << 20) -> list[Path]:
    """The files of a closed log of FRAMES."""
    with closing(FileLog(ID, directory, segment_bytes)) as log:
        fill(log, *FRAMES)
    return sorted(directory.iterdir())


def record_starts(directory: Path) -> list[int]:
    """Where each record of a log of one segment begins, and the file's end."""
    sizes = []
    for count in range(len(FRAMES) + 1):
        with closing(FileLog(ID, directory / str(count))) as log:
            sizes.append(fill(log, *FRAMES[:count]).nbytes)
    return sizes


def test_file_a_torn_last_record_is_cut_off_wherever_it_was_torn(tmp_path: Path):
    [path] = written(tmp_path / "log")
    whole, begin = path.read_bytes(), record_starts(tmp_path)[3]
    for size in [*range(begin + 1, begin + 40), *range(begin + 40, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with closing(FileLog(ID, path.parent)) as log:
            assert log.read(0, ALL) == list(enumerate(FRAMES[:3]))
            assert f"cut off {size - begin} bytes at byte {begin}" in log.repaired
            assert log.append(FRAMES[3]) == 3
        assert path.read_bytes() == whole


def test_file_a_last_record_that_power_loss_left_as_zeros_is_cut_off(tmp_path: Path):
    [path] = written(tmp_path / "log")
    whole, begin = path.read_bytes(), record_starts(tmp_path)[3]
    for kept in (begin, begin + 3, begin + 100):
        path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
        with closing(FileLog(ID, path.parent)) as log:
            assert log.end == 3
            assert log.repaired


def test_file_a_sound_log_needs_no_repair(tmp_path: Path):
    written(tmp_path)
    with closing(FileLog(ID, tmp_path)) as log:
        assert log.repaired == ""


def test_file_a_flipped_bit_in_the_middle_names_file_and_place(tmp_path: Path):
    [path] = written(tmp_path / "log")
    whole, starts = path.read_bytes(), record_starts(tmp_path)
    for place in range(starts[3]):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        record = max([begin for begin in starts if begin <= place], default=0)
        with pytest.raises(CorruptError, match=f"{path.name}, byte {record}: "):
            FileLog(ID, path.parent)


def test_file_damage_to_an_older_segment_is_never_taken_for_a_torn_record(tmp_path: Path):
    paths = written(tmp_path, segment_bytes=1)
    assert [path.name for path in paths] == [f"{offset:020d}.log" for offset in range(4)]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:-5])
    with pytest.raises(CorruptError, match=r"0001.log, byte 33: the record is cut short"):
        FileLog(ID, tmp_path)
    paths[1].unlink()
    with pytest.raises(CorruptError, match=r"0002.log, byte 0: it begins at offset 2"):
        FileLog(ID, tmp_path)


def test_file_damaged_rows_of_an_older_segment_are_found_by_the_read(tmp_path: Path):
    paths = written(tmp_path, segment_bytes=1)
    damaged = bytearray(paths[1].read_bytes())
    damaged[-20] ^= 1
    paths[1].write_bytes(damaged)
    with closing(FileLog(ID, tmp_path)) as log:
        assert log.next_stable_id == 303
        with pytest.raises(CorruptError, match=r"0001.log, byte 33: the frame's checksum"):
            log.read(0, ALL)
        assert log.read(2, ALL) == [(2, FRAMES[2]), (3, FRAMES[3])]


def test_file_a_segment_whose_making_was_cut_short_is_made_again(tmp_path: Path):
    written(tmp_path)
    for size in (0, 10, 32):
        (tmp_path / f"{4:020d}.log").write_bytes(b"bLog\x01"[:size].ljust(size, b"\0"))
        with closing(FileLog(ID, tmp_path)) as log:
            assert log.repaired
            assert log.read(0, ALL) == list(enumerate(FRAMES))
    with pytest.raises(CorruptError, match="header"):
        (tmp_path / f"{9:020d}.log").write_bytes(b"")
        FileLog(ID, tmp_path)


def test_file_a_log_goes_on_once_there_is_room_again_for_a_new_segment(tmp_path: Path):
    small = boundary(1)
    with closing(FileLog(ID, tmp_path, segment_bytes=300)) as log:
        fill(log, start(1), small)
        with patch("os.fsync", side_effect=[None, OSError(28, "No space left on device")]), pytest.raises(OSError):
            log.append(data(0, 300))
        assert len(list(tmp_path.iterdir())) == 1
        log.append(data(0, 300))
        log.append(small)
        whole = log.read(0, ALL)
    assert len(whole) == 4
    with closing(FileLog(ID, tmp_path)) as log:
        assert log.read(0, ALL) == whole


def test_file_a_segment_of_an_unknown_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr("embedded.file_log._VERSION", 9)
        FileLog(ID, tmp_path).close()
    with pytest.raises(CorruptError, match="version 9"):
        FileLog(ID, tmp_path)


def test_file_an_append_that_fails_leaves_the_log_as_it_was(tmp_path: Path):
    with closing(FileLog(ID, tmp_path)) as log:
        fill(log, *FRAMES[:2])
        disk = log._writer
        log._writer = cast(FileIO, FullDisk(disk, space=50))
        with pytest.raises(OSError, match="no space"):
            log.append(FRAMES[2])
        log._writer = disk
        assert log.end == 2
        assert log.append(FRAMES[2]) == 2
    with closing(FileLog(ID, tmp_path)) as log:
        assert log.read(0, ALL) == list(enumerate(FRAMES[:3]))
        assert log.repaired == ""


@dataclass
class FullDisk:
    """A file that takes only so many bytes more."""

    file: FileIO
    space: int

    def write(self, data: bytes) -> int:
        if self.space == 0:
            raise OSError("no space left")
        written = self.file.write(data[: self.space])
        self.space -= written
        return written

    def truncate(self, size: int) -> int:
        return self.file.truncate(size)


def test_file_trim_deletes_whole_segments_but_never_the_one_in_use(tmp_path: Path):
    with closing(FileLog(ID, tmp_path, segment_bytes=2500)) as log:
        fill(log, start(1), *(data(100 * n, 100) for n in range(6)))
        assert len(os.listdir(tmp_path)) > 2
        log.append(boundary(600, anchored=True))
        log.trim(599)
        assert len(os.listdir(tmp_path)) == 1
        assert log.start > 2
