"""The output of a live query: the records that its clients see, the newest of which are kept in memory.

The frames are in the egress's log; which records they become follows from them alone. Every MARK_FRAMES frames the state of the
changelog is noted, and the note before it is written to a file. The log is then trimmed to that note. So a restart reads the
file and the frames after it, and continues with the same numbers.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from boreal.model.frames import Boundary, Data, Frame, LogId, Start
from boreal.query.plan import Plan
from deployment.delay_window import DelayWindow
from embedded.live.lead import Lead, place_at
from embedded.run_folder import write_whole
from formats.changelog import Changelog, ChangelogPlace, ChangelogState, ControlRecord, RowRecords
from formats.json_text import listed
from logs.log import LogStore

KEPT_RECORDS = 20_000
"""How many records with rows, undos and ends of corrections are kept."""
KEPT_BOUNDARIES = 512
"""How many boundaries are kept beside them: an idle query has many, and a later one takes the place of an earlier one."""
MARK_FRAMES = 10_000
READ_FRAMES = 1_024
NEAR = 200
"""So far from the end a walk from there is cheap."""


@dataclass(frozen=True, slots=True)
class RingRecord:
    """A record of changes.jsonl."""

    seq: int
    """Its number, from 1."""
    kind: str
    """`stable`, `tentative`, `undo`, `boundary` or `rec_done`."""
    record: str
    """The record as JSON."""
    data: str | None
    """The row of a stable record as JSON, as in stable.jsonl; None for other records."""


class OutputRing:
    """The newest records of a query, for any number of readers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[RingRecord] = deque(maxlen=KEPT_RECORDS)
        self._boundaries: deque[RingRecord] = deque(maxlen=KEPT_BOUNDARIES)
        self._listeners: dict[int, Callable[[], None]] = {}
        self._lost_to = 0
        self._last = 0
        self._next_listener = 0

    @property
    def lost_to(self) -> int:
        """The number of the last record that is no longer kept, boundaries apart; 0 if all are."""
        return self._lost_to

    @property
    def last(self) -> int:
        """The number of the newest record; 0 if there was none."""
        return self._last

    def begin(self, lost_to: int) -> None:
        """The records up to this number are not kept."""
        with self._lock:
            self._rows.clear()
            self._boundaries.clear()
            self._lost_to, self._last = lost_to, max(self._last, lost_to)

    def add(self, records: list[RingRecord]) -> None:
        """Add the next records, and tell the listeners."""
        with self._lock:
            for record in records:
                kept = self._boundaries if record.kind == "boundary" else self._rows
                if kept is self._rows and len(kept) == KEPT_RECORDS:
                    self._lost_to = kept[0].seq
                kept.append(record)
                self._last = record.seq
            listeners = list(self._listeners.values())
        for notify in listeners:
            notify()

    def read(self, after: int, limit: int, only_stable: bool) -> list[RingRecord]:
        """At most `limit` records after a number, in order. only_stable: only stable rows."""
        with self._lock:
            rows, last = self._rows, self._last
            found = _first_after(after, last, rows, None if only_stable else limit)
            found += [] if only_stable else _first_after(after, last, self._boundaries, limit)
        if only_stable:
            found = [record for record in found if record.kind == "stable"]
        found.sort(key=_seq)
        return found[:limit]

    def before_last(self, count: int, only_stable: bool) -> int:
        """The number after which `count` records with rows, undos or ends of corrections follow, or as many as are kept."""
        with self._lock:
            newest = (record for record in reversed(self._rows) if not only_stable or record.kind == "stable")
            first = next(islice(newest, count, None), None)
            return self._lost_to if first is None else first.seq

    def listen(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` whenever records were added, until the returned function is called."""
        with self._lock:
            self._next_listener += 1
            number = self._next_listener
            self._listeners[number] = notify

        def stop() -> None:
            with self._lock:
                self._listeners.pop(number, None)

        return stop


_seq = attrgetter("seq")


def _first_after(after: int, last: int, records: deque[RingRecord], limit: int | None) -> list[RingRecord]:
    """The first records after a number, in any order. Most readers are near the end; for the others a search costs less than a
    walk."""
    if last - after <= NEAR:
        return list(takewhile(lambda record: record.seq > after, reversed(records)))
    kept = list(records)
    start = bisect_right(kept, after, key=_seq)
    return kept[start:] if limit is None else kept[start : start + limit]


@dataclass(frozen=True, slots=True)
class _Mark:
    """The state of the changelog before the frame at an offset of the log."""

    offset: int
    state: ChangelogState
    version: int
    """The version whose log it is."""
    lead: Lead | None = None
    """Of a version that has taken over."""


class Output:
    """The changelog of a query, as one of its versions gives it, from the mark in `path` on, if that file exists. CorruptError
    if the log lacks its frames."""

    def __init__(self, plan: Plan, logs: LogStore, path: Path, ring: OutputRing, version: int, is_led_in: bool = False) -> None:
        """plan, logs: of the version. is_led_in: the mark is new, made by `lead_in`: the frames after it are delivered now."""
        self.version = version
        self.ring = ring
        self.delays = DelayWindow(plan.delay_threshold_us)
        self.tentative_since: int | None = None
        self.cause = ""
        self._path = path
        self._log = logs.open(LogId(plan.output.name, "r0", 0))
        output, has_disorder = plan.output, plan.disorder_us > 0
        self._changelog = Changelog(plan.query, output.schema, plan.output_key, plan.bucket_us, has_disorder=has_disorder)
        self._mark = _read_mark(path)
        if self._mark is not None:
            self._changelog.restore(self._mark.state)
        else:
            self._mark = _Mark(self._log.start, self._changelog.state, version)
        self._lead = self._mark.lead
        if not is_led_in:
            self.ring.begin(self._mark.state.place.seq)
        self._replay(self._mark)
        self._newer = self._mark_here()

    @property
    def place(self) -> ChangelogPlace:
        """The present position of the changelog."""
        return self._changelog.place

    def _mark_here(self) -> _Mark:
        return _Mark(self._log.end, self._changelog.state, self.version, self._lead)

    def lead_in(self, plan: Plan, logs: LogStore, version: int, last: Boundary, now: int) -> Output:
        """The output of the version that takes over where this one ends. When this returns it has taken over, whatever happens
        to the process. plan, logs: of that version, whose stable results have reached the time. last: the boundary that ends
        this one: clients see it only then, because before a crash would end this version later."""
        at = last.time
        log = logs.open(LogId(plan.output.name, "r0", 0))
        offset, first_id = place_at(log, at)
        first = self._changelog.place.seq + 1
        own = self._lead.take(last) if self._lead is not None else last
        assert own is not None, "it ends after it began"
        ends = [self._changelog.take(own, now)]
        place = self._changelog.place
        tail = log.tail()
        epoch = next((frame.epoch for _, frame in log.read(offset, 1)), tail.epoch if tail is not None else 0)
        # What clients have tentatively of this version is undone first.
        ends.append(self._changelog.take(Start(last.origin, place.epoch + 1, place.next_stable_id), now))
        state = self._changelog.state
        lead = Lead(at, place.next_stable_id - first_id, place.epoch + 1 - epoch)
        log.sync()
        _write_mark(self._path, _Mark(offset, state, version, lead))
        controls = [each for each in ends if isinstance(each, ControlRecord)]
        self.ring.add([RingRecord(seq, each.kind, each.record, None) for seq, each in enumerate(controls, first)])
        return Output(plan, logs, self._path, self.ring, version, is_led_in=True)

    def take(self, frame: Frame, now: int, replica: str) -> None:
        """The next frame of the version: the last one of the log, or its beginning, where that waits for a takeover."""
        delays = self._take(frame, now, replica)
        if delays is not None:
            self.delays.add(now, delays)
        if self._log.end - self._newer.offset >= MARK_FRAMES:
            self._move_on()

    def _take(self, frame: Frame, now: int, replica: str) -> np.ndarray | None:
        """The delays of new rows; None if the frame has no rows."""
        if self._lead is not None:
            led = self._lead.take(frame)
            if led is None:
                return None
            frame = led
        first = self._changelog.place.seq + 1
        taken = self._changelog.take(frame, now, replica)
        if isinstance(taken, RowRecords):
            kind = "tentative" if taken.frame.tentative else "stable"
            data = [None] * len(taken.records) if taken.frame.tentative else listed(taken.data)
            texts = zip(listed(taken.records), data, strict=True)
            self.ring.add([RingRecord(first + place, kind, text, row) for place, (text, row) in enumerate(texts)])
        elif taken is not None:
            self.ring.add([RingRecord(first, taken.kind, taken.record, None)])
        outstanding = self._changelog.place.outstanding
        if not outstanding:
            self.tentative_since, self.cause = None, ""
        elif isinstance(frame, Data):
            # The newest cause: rows that were only early may be followed by those of a failure.
            self.tentative_since, self.cause = now if self.tentative_since is None else self.tentative_since, frame.cause
        return taken.delays_us if isinstance(taken, RowRecords) else None

    def _replay(self, mark: _Mark) -> None:
        """Take the frames of the log from a mark on. When they were delivered is not known exactly: their boundaries tell."""
        offset, at = mark.offset, 0
        while offset < self._log.end:
            for place, frame in self._log.read(offset, READ_FRAMES):
                at = max(at, frame.sent) if isinstance(frame, Boundary) else at
                self._take(frame, max(at, _ingested(frame)), "r0")
                offset = place + 1

    def _move_on(self) -> None:
        """Write the newer mark, trim the log to it, and make a new one."""
        mark, self._newer = self._newer, self._mark_here()
        if self._newer.state.place.next_stable_id == mark.state.place.next_stable_id:
            # Only boundaries since then: nothing is lost if a restart begins here, and all of them can be removed.
            mark, last_id = self._newer, self._newer.state.place.next_stable_id - 1
        else:
            # The frame with the last row before the mark stays, and with it all control frames after it.
            last_id = mark.state.place.next_stable_id - 2
        last_id -= self._lead.ids if self._lead is not None else 0
        self._log.sync()
        _write_mark(self._path, mark)
        if last_id >= 0:
            self._log.trim(last_id)


def _ingested(frame: Frame) -> int:
    return max(at for _, at in frame.ingest) if isinstance(frame, Data) else 0


def version_given(path: Path) -> int | None:
    """The version whose rows clients get, by the mark in a file; None if there is none."""
    mark = _read_mark(path)
    return None if mark is None else mark.version


def _write_mark(path: Path, mark: _Mark) -> None:
    lead = {"lead": asdict(mark.lead)} if mark.lead is not None else {}
    version = {"version": mark.version} if mark.version != 1 else {}
    write_whole(path, json.dumps({"offset": mark.offset, **asdict(mark.state), **version, **lead}))


def _read_mark(path: Path) -> _Mark | None:
    if not path.is_file():
        return None
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    offset, place = fields.pop("offset"), ChangelogPlace(**fields.pop("place"))
    version, lead = int(fields.pop("version", 1)), fields.pop("lead", None)
    return _Mark(int(offset), ChangelogState(place, **fields), version, Lead(**lead) if lead is not None else None)
