"""The protocol of a reader (the client side of DPC): it merges the records of one or several sites into one corrected stream.

Pure: it uses no socket and no clock. `now` is a monotonic time in seconds, which stops while the application does not read.

A stable row has the same id at every site, so any site that has the next row can deliver it. Tentative rows differ between
sites: the reader delivers those of one site, the live one. The reader switches to another site when the live site is silent,
or when another site has had the next stable row for longer than the silence limit (R23, R28):

    to a site with stable rows for us, or without tentative rows    our tentative rows are undone, and the stream of that
                                                                    site follows from our next id
    to a site with tentative rows only                              our tentative rows stay, and that site's rows with a
                                                                    later t_max are added; its undo revokes all of them
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from boreal.client.changes import Boundary, Change, Missing, RecDone, Stable, Tentative, Undo

T = TypeVar("T")

_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A record of q.out or q.stable."""

    offset: int
    """The Kafka offset of the record."""
    id: int
    """The id of a stable row; -1 for any other record."""
    incarnation: int
    """The incarnation of the writer, with the number of times that the topic was created again in the high bits."""
    fields: dict[str, Any]
    """The value of a record of q.out; `type`, `data` and `key` of a record of q.stable."""
    topic_id: str = ""
    """The id of the topic; '' if Kafka does not give one."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in the log of one site."""

    offset: int
    """The Kafka offset of the next record."""
    next_id: int
    """The id of the next stable row from there on, or a lower bound of it."""
    topic_id: str = ""
    """The id of the topic that the offset belongs to; '' if Kafka does not give one."""


@dataclass(frozen=True, slots=True)
class Delivery(Generic[T]):
    """A change, and the place at which a reader continues after it."""

    change: Change[T]
    """The change."""
    next_id: int | None
    """The id of the next stable row; None before the first one."""
    site: str
    """The site that the change was read from."""
    position: LogPosition
    """The position after the change in the log of that site."""


@dataclass(frozen=True, slots=True)
class _PendingRow:
    """A stable row that was not delivered yet, and the time of its arrival in seconds."""

    record: OutputRecord
    since: float


@dataclass(slots=True)
class _SiteLog:
    """The log of one site, as far as it was read.

    heard: when its last batch arrived, in seconds. waiting: stable rows from our next id on, or after a gap. tentative: the
    rows after the last stable one. position: no record before it is still needed.
    """

    name: str
    heard: float
    position: LogPosition
    next_id: int
    incarnation: int = 0
    waiting: deque[_PendingRow] = field(default_factory=deque)
    tentative: list[OutputRecord] = field(default_factory=list)

    @property
    def waiting_id(self) -> int | None:
        """The id of the first stable row that is waiting."""
        return self.waiting[0].record.id if self.waiting else None


class Corrector(Generic[T]):
    """One reader. failure: the error of parsing a record or of making its row; no more changes are delivered after it."""

    def __init__(
        self,
        positions: dict[str, LogPosition],
        make_row: Callable[[dict[str, Any]], T],
        now: float,
        next_id: int | None = None,
        stable_only: bool = False,
        silence_s: float = 1.0,
    ) -> None:
        """positions: where each site is read from. make_row: makes the reader's row from the data of a record. next_id: the
        first stable row to deliver; None for the first available one. stable_only: deliver only stable rows, from any site.
        silence_s: how long the live site may be silent, in seconds."""
        self.sites = {name: _SiteLog(name, now, position, position.next_id) for name, position in positions.items()}
        self.live: str | None = None
        self.next_id = next_id
        self.failure: Exception | None = None
        self._make_row = make_row
        self._stable_only = stable_only
        self._silence_s = silence_s
        self._visible: list[Tentative[T]] = []
        self._is_correcting = False
        self._floor = ""
        self._visible_t_max = ""
        self._stable_t_max = ""
        self._through = {False: _BEGINNING, True: _BEGINNING}

    def take(self, batches: Sequence[tuple[str, Sequence[OutputRecord]]], now: float) -> list[Delivery[T]]:
        """Take the next records of some logs, in order, and return the changes that result. Also called without records, when
        only time has passed."""
        deliveries: list[Delivery[T]] = []
        try:
            self._take_all(batches, now, deliveries)
        except Exception as error:
            # The changes before the error are still delivered.
            self.failure = error
        return deliveries

    def finish(self) -> list[Delivery[T]]:
        """No more records are read: return what another site has beyond the live one, without waiting for its silence."""
        deliveries: list[Delivery[T]] = []
        others = [state for state in self.sites.values() if state.waiting and not self._lacks(state)]
        if self.failure is None and others:
            try:
                self._switch(max(others, key=lambda state: state.next_id), deliveries)
            except Exception as error:
                self.failure = error
        return deliveries

    def _take_all(
        self, batches: Sequence[tuple[str, Sequence[OutputRecord]]], now: float, deliveries: list[Delivery[T]]
    ) -> None:
        for site, _ in batches:
            self.sites[site].heard = now
        for site, records in batches:
            self.live = self.live or site
            state = self.sites[site]
            for record in records:
                if record.incarnation >= state.incarnation:
                    state.incarnation = record.incarnation
                    self._take(state, record, deliveries)
        if self._stable_only:
            self._give_waiting(self.sites.values(), deliveries)
        elif (better := self._better_site(now)) is not None:
            self._switch(better, deliveries)
        self._pass_over(now, deliveries)

    def positions(self) -> dict[str, LogPosition]:
        """The positions from which to read the sites, to continue after the last change delivered."""
        return {name: state.position for name, state in self.sites.items()}

    # One record

    def _take(self, state: _SiteLog, record: OutputRecord, deliveries: list[Delivery[T]]) -> None:
        is_live = state.name == self.live
        match record.fields["type"]:
            case "stable":
                self._take_stable(state, record, deliveries)
            case "tentative" if not self._stable_only:
                state.tentative.append(record)
                if is_live:
                    self._give_tentative(state, record, deliveries)
            case "undo":
                state.tentative.clear()
                if is_live:
                    self._revoke(state, record.fields["cause"], deliveries)
                    self._floor = self._stable_t_max if self._is_behind(state) else ""
            case "boundary" if is_live and not self._stable_only:
                self._give_boundary(state, record, deliveries)
            case "rec_done" if is_live and self._is_correcting:
                self._is_correcting = False
                deliveries.append(self._delivery(RecDone(record.fields["cause"]), state))

    def _take_stable(self, state: _SiteLog, record: OutputRecord, deliveries: list[Delivery[T]]) -> None:
        state.next_id = record.id + 1
        state.tentative.clear()
        if self.next_id is None and state.name == self.live:
            self.next_id = record.id
        if self.next_id is not None and record.id < self.next_id:
            state.position = _after(record)
            return
        if state.waiting and record.id <= state.waiting[-1].record.id:
            return  # A later incarnation of the writer repeats a row that is already waiting.
        state.waiting.append(_PendingRow(record, state.heard))
        if state.name == self.live or self._stable_only:
            self._give_waiting([state], deliveries)

    # Delivery

    def _delivery(self, change: Change[T], state: _SiteLog) -> Delivery[T]:
        return Delivery(change, self.next_id, state.name, state.position)

    def _give_waiting(self, states: Iterable[_SiteLog], deliveries: list[Delivery[T]]) -> None:
        """Deliver all stable rows of these sites that follow ours, and forget the copies of them that other sites hold."""
        for state in states:
            before = self.next_id
            while state.waiting_id is not None and state.waiting_id == self.next_id:
                self._give_stable(state, state.waiting.popleft().record, deliveries)
            if self.next_id != before:
                self._forget_given()

    def _forget_given(self) -> None:
        for state in self.sites.values():
            while state.waiting and state.waiting[0].record.id < (self.next_id or 0):
                state.position = _after(state.waiting.popleft().record)

    def _give_stable(self, state: _SiteLog, record: OutputRecord, deliveries: list[Delivery[T]]) -> None:
        if self._visible:
            self._revoke(state, None, deliveries)
        # Only after the undo: a reader that continues at the undo must read this row again.
        state.position, self.next_id = _after(record), record.id + 1
        fields = record.fields
        self._stable_t_max = max(self._stable_t_max, fields.get("t_max", ""))
        row = Stable(
            record.id,
            self._make_row(fields["data"]),
            fields.get("key"),
            _moment(fields.get("event_time")),
            state.name,
            fields.get("ingest_ms", 0.0),
            fields.get("emitted_ms", 0.0),
        )
        deliveries.append(self._delivery(row, state))

    def _give_tentative(self, state: _SiteLog, record: OutputRecord, deliveries: list[Delivery[T]]) -> None:
        fields = record.fields
        if fields["t_max"] <= self._floor or self._is_history(state):
            return
        row = Tentative(
            self._make_row(fields["data"]),
            fields["key"],
            _moment(fields["event_time"]),
            state.name,
            fields["ingest_ms"],
            fields["emitted_ms"],
            tuple(fields["missing_inputs"]),
            fields["cause"],
        )
        self._visible.append(row)
        self._visible_t_max = max(self._visible_t_max, fields["t_max"])
        deliveries.append(self._delivery(row, state))

    def _give_boundary(self, state: _SiteLog, record: OutputRecord, deliveries: list[Delivery[T]]) -> None:
        fields = record.fields
        through, tentative = _moment(fields["through"]), fields["tentative"]
        if through > self._through[tentative] and not self._is_history(state):
            self._through[tentative] = through
            boundary = Boundary(through, tentative, tuple(fields["missing_inputs"]), fields["cause"])
            deliveries.append(self._delivery(boundary, state))

    def _revoke(self, state: _SiteLog, cause: str | None, deliveries: list[Delivery[T]]) -> None:
        self._through[True] = _BEGINNING
        if self._visible:
            undo = Undo(tuple(self._visible), cause)
            self._visible, self._visible_t_max = [], ""
            self._is_correcting = True
            deliveries.append(self._delivery(undo, state))

    # State of a site

    def _is_heard(self, state: _SiteLog, now: float) -> bool:
        return now - state.heard <= self._silence_s

    def _is_behind(self, state: _SiteLog) -> bool:
        return state.next_id < (self.next_id or 0)

    def _is_history(self, state: _SiteLog) -> bool:
        """Whether we began in the middle of the output, and this site is still before the first row that we want."""
        return not self._stable_t_max and self._is_behind(state)

    def _lacks(self, state: _SiteLog) -> bool:
        """Whether the log of a site has a gap: it lacks the next stable row but has a later one."""
        return state.waiting_id is not None and self.next_id is not None and state.waiting_id > self.next_id

    def _has_long(self, state: _SiteLog, now: float) -> bool:
        """Whether a site has had the next stable row for longer than the silence limit."""
        return bool(state.waiting) and not self._lacks(state) and now - state.waiting[0].since > self._silence_s

    # Other sites

    def _better_site(self, now: float) -> _SiteLog | None:
        """The site to switch to, if the live site is silent, late, or lacks the next stable row; else None."""
        if self.live is None:
            return None
        live = self.sites[self.live]
        others = [state for state in self.sites.values() if state is not live and self._is_heard(state, now)]
        if self._lacks(live):
            others = [state for state in others if state.waiting and not self._lacks(state)]
        elif self._is_heard(live, now):
            others = [state for state in others if self._has_long(state, now)]
        return max(others, key=lambda state: (not state.tentative, state.next_id), default=None)

    def _switch(self, to: _SiteLog, deliveries: list[Delivery[T]]) -> None:
        self.live = to.name
        if self.next_id is None:
            self.next_id = to.waiting_id
        self._give_waiting([to], deliveries)
        if not to.tentative:
            self._revoke(to, None, deliveries)
        self._floor = max(self._visible_t_max, self._stable_t_max if self._is_behind(to) else "")
        for record in to.tentative:
            self._give_tentative(to, record, deliveries)

    def _pass_over(self, now: float, deliveries: list[Delivery[T]]) -> None:
        """Report the next stable rows as missing, if every site that is not silent lacks them."""
        lacking = {state.waiting_id: state for state in self.sites.values() if self._lacks(state)}
        if not lacking or any(self._is_heard(state, now) and not self._lacks(state) for state in self.sites.values()):
            return
        first_id, self.next_id = self.next_id or 0, min(id_ for id_ in lacking if id_ is not None)
        nearest = lacking[self.next_id]
        deliveries.append(self._delivery(Missing(first_id, self.next_id - 1), nearest))
        if self._stable_only:
            self._give_waiting(self.sites.values(), deliveries)
        elif nearest.name == self.live:
            self._give_waiting([nearest], deliveries)
        else:
            self._switch(nearest, deliveries)


def _after(record: OutputRecord) -> LogPosition:
    return LogPosition(record.offset + 1, record.id + 1, record.topic_id)


def _moment(text: str | None) -> datetime:
    return datetime.fromisoformat(text) if text else _BEGINNING
