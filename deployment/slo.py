"""X as a service level objective: of the results of a query, how many came within X, and for how much of the time clients held
nothing tentative. Pure: what is seen of the egresses and the time in; records and the budget out.

What clients were given is summed up in spans. A minute in which something was late or tentative is a separate span, recorded
when it is over. Calm minutes are one span until one of those comes, or for an hour; and an hour without any row is not recorded
at all. So a calm night writes a record an hour, at most, and a crash forgets at most an hour of rows that were on time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from boreal.query.running import Slo
from deployment.events import DELETED, KEPT_MS, SERVED, RecordedEvent

MINUTE_MS = 60_000.0
HOUR_MS = 3_600_000.0
BURN_MS = {"burn_1h": HOUR_MS, "burn_6h": 6 * HOUR_MS}
"""The times over which burn rates are taken, by the name of the rate."""


@dataclass(frozen=True, slots=True)
class ServedSpan:
    """What clients were given within a span of time; milliseconds since the Unix epoch."""

    from_ms: float
    """When the span begins."""
    to_ms: float
    """When it ends."""
    on_time: int = 0
    """New rows within X."""
    late: int = 0
    """New rows later than X."""
    tentative_ms: float = 0.0
    """For how long they held tentative rows."""

    @property
    def is_bad(self) -> bool:
        return self.late > 0 or self.tentative_ms > 0

    def with_next(self, span: ServedSpan) -> ServedSpan:
        """Both as one."""
        counts = self.on_time + span.on_time, self.late + span.late, self.tentative_ms + span.tentative_ms
        return ServedSpan(self.from_ms, span.to_ms, *counts)


@dataclass(slots=True)
class Sums:
    """The sums over a time."""

    on_time: float = 0.0
    """The number of new rows within X; a fraction where a span counts in part."""
    late: float = 0.0
    """The number of new rows later than X."""
    tentative_ms: float = 0.0
    """For how long clients held tentative rows (ms)."""

    def add(self, span: ServedSpan, since_ms: float) -> None:
        """Add the part of a span after `since_ms`."""
        if span.to_ms <= since_ms:
            return
        share = 1.0 if span.from_ms >= since_ms else (span.to_ms - since_ms) / (span.to_ms - span.from_ms)
        self.on_time += share * span.on_time
        self.late += share * span.late
        self.tentative_ms += share * span.tentative_ms


class ServedLedger:
    """The spans of the last 30 days. Those before the last six hours are kept as hours, so that their number is bounded."""

    def __init__(self) -> None:
        self.since_ms: float | None = None
        """Since when it is known what was given; None as long as it never was."""
        self.version = 0
        """Rises whenever a span is added."""
        self._hours: deque[ServedSpan] = deque()
        self._recent: deque[ServedSpan] = deque()

    def __len__(self) -> int:
        return len(self._hours) + len(self._recent)

    def begin(self, at_ms: float) -> None:
        """It is known what was given from then on."""
        self.since_ms = at_ms if self.since_ms is None else min(self.since_ms, at_ms)

    def add(self, span: ServedSpan) -> None:
        """Add a span; spans come in the order of time."""
        self.begin(span.from_ms)
        self.version += 1
        self._recent.append(span)
        while self._recent[0].to_ms < span.to_ms - 6 * HOUR_MS:
            old = self._recent.popleft()
            if self._hours and old.to_ms - self._hours[-1].from_ms <= HOUR_MS:
                self._hours.append(self._hours.pop().with_next(old))
            else:
                self._hours.append(old)
        while self._hours and self._hours[0].to_ms < span.to_ms - KEPT_MS:
            self._hours.popleft()

    def sums(self, since_ms: float) -> Sums:
        """What was given since then. The part of a span is taken as if it had been given evenly."""
        found = Sums()
        for spans in (self._recent, self._hours):
            for span in reversed(spans):
                if span.to_ms <= since_ms:
                    break
                found.add(span, since_ms)
        return found


@dataclass(slots=True)
class _Open:
    """A span that is not over."""

    from_ms: float
    on_time: int = 0
    late: int = 0
    tentative_ms: float = 0.0

    def until(self, to_ms: float) -> ServedSpan:
        return ServedSpan(self.from_ms, to_ms, self.on_time, self.late, self.tentative_ms)


@dataclass(slots=True)
class _Counter:
    """The counts of an egress since it began."""

    rows: int = 0
    late: int = 0


@dataclass(slots=True)
class ServiceLevel:
    """What the clients of one query were given. Times are milliseconds since the Unix epoch, and never fall."""

    query: str
    """The name of the query."""
    ledger: ServedLedger = field(default_factory=ServedLedger)
    """What was given, in spans that are over."""
    _calm: ServedSpan | None = None
    _minute: _Open | None = None
    _seen_ms: float = 0.0
    _counters: dict[str, _Counter] = field(default_factory=dict)
    _tentative: set[str] = field(default_factory=set)
    _summed: tuple[object, list[Sums]] | None = None

    def resume(self, event: RecordedEvent) -> None:
        """An event that was recorded before. KeyError, TypeError or ValueError if it lacks facts of its kind."""
        if event.kind == DELETED:
            self.ledger = ServedLedger()
        elif event.kind == SERVED:
            facts = event.facts
            counts = int(facts["on_time"]), int(facts["late"]), float(facts["tentative_ms"])
            self.ledger.add(ServedSpan(float(facts["from_ms"]), event.at_ms, *counts))

    # What is seen

    def see(self, site: str, rows: int, late: int, is_tentative: bool, now_ms: float) -> list[RecordedEvent]:
        """What the egress of a site has given since it began: new rows, and how many of these later than X; and whether its
        clients hold tentative rows now. To be called every minute, and when that changes. What was given before the first call
        does not count; an egress that restarts counts from 0."""
        now_ms = max(now_ms, self._seen_ms)
        if self._minute is None:
            self._minute, self._calm, self._seen_ms = _Open(now_ms), None, now_ms
        before = self._counters.get(site)
        if before is None:
            before = _Counter(rows, late)
        elif rows < before.rows or late < before.late:
            before = _Counter()
        minute, boundary_ms = self._minute, now_ms - now_ms % MINUTE_MS
        events: list[RecordedEvent] = []
        if minute.from_ms < boundary_ms:
            self._pass(boundary_ms)
        # They came since the last call, so before the boundary if this call is the first one after it.
        minute.late += late - before.late
        minute.on_time += rows - before.rows - (late - before.late)
        if minute.from_ms < boundary_ms:
            events = self._close(boundary_ms)
        self._pass(now_ms)
        self._counters[site] = _Counter(rows, late)
        (self._tentative.add if is_tentative else self._tentative.discard)(site)
        return events

    def stop(self, now_ms: float) -> list[RecordedEvent]:
        """Nothing is counted until `see` is called again: the query is paused, or the process ends."""
        events: list[RecordedEvent] = []
        if self._minute is not None:
            self._pass(max(now_ms, self._seen_ms))
            events = self._close(self._seen_ms)
            events += self._record(self._calm)
        self._minute = self._calm = None
        self._counters.clear()
        self._tentative.clear()
        return events

    def _pass(self, now_ms: float) -> None:
        assert self._minute is not None
        if self._tentative:
            self._minute.tentative_ms += now_ms - self._seen_ms
        self._seen_ms = now_ms

    def _close(self, to_ms: float) -> list[RecordedEvent]:
        """The minute is over."""
        assert self._minute is not None
        span, self._minute = self._minute.until(to_ms), _Open(to_ms)
        if span.is_bad:
            calm, self._calm = self._calm, None
            return self._record(calm) + self._record(span)
        self._calm = span if self._calm is None else self._calm.with_next(span)
        if to_ms - self._calm.from_ms < HOUR_MS:
            return []
        calm, self._calm = self._calm, None
        return self._record(calm)

    def _record(self, span: ServedSpan | None) -> list[RecordedEvent]:
        if span is None:
            return []
        self.ledger.begin(span.from_ms)
        if not (span.on_time or span.is_bad):
            return []
        self.ledger.add(span)
        facts = {
            "from_ms": span.from_ms,
            "on_time": span.on_time,
            "late": span.late,
            "tentative_ms": round(span.tentative_ms, 3),
        }
        return [RecordedEvent(span.to_ms, SERVED, self.query, None, None, facts)]

    # The budget

    def report(self, slo: Slo, now_ms: float) -> dict[str, Any]:
        """The objective, and what is left of its budgets: the fields of `deployment.status_fields.SLO`."""
        wrong = 1 - slo.objective / 100
        window_ms = slo.window / 1_000
        window, *burnt = self._sums(window_ms, now_ms)
        total = window.on_time + window.late
        since_ms = self._since_ms(now_ms)
        counted_ms = min(window_ms, now_ms - since_ms)
        rates = zip(BURN_MS.items(), burnt, strict=True)
        burn = {name: (_share(sums.late, sums.on_time + sums.late), sums.tentative_ms / ms) for (name, ms), sums in rates}
        return {
            "objective": slo.objective,
            "window_ms": window_ms,
            "since_ms": max(since_ms, now_ms - window_ms),
            "results": {
                "on_time": round(window.on_time),
                "late": round(window.late),
                "share": None if not total else window.on_time / total,
                "budget_left": 1 - _share(window.late, total) / wrong,
                **{name: late / wrong for name, (late, _) in burn.items()},
            },
            "time": {
                "tentative_ms": round(window.tentative_ms, 3),
                "share": None if counted_ms <= 0 else 1 - min(window.tentative_ms / counted_ms, 1.0),
                "budget_left": 1 - window.tentative_ms / (wrong * window_ms),
                **{name: tentative / wrong for name, (_, tentative) in burn.items()},
            },
        }

    def _since_ms(self, now_ms: float) -> float:
        opened = (span.from_ms for span in (self._calm, self._minute) if span is not None)
        known = (self.ledger.since_ms, *opened)
        return min((at for at in known if at is not None), default=now_ms)

    def _sums(self, window_ms: float, now_ms: float) -> list[Sums]:
        """Over the window and the times of the burn rates. The ledger is summed up once a minute, or when it has grown."""
        lengths = (window_ms, *BURN_MS.values())
        key = self.ledger.version, now_ms // MINUTE_MS, window_ms
        if self._summed is None or self._summed[0] != key:
            self._summed = key, [self.ledger.sums(now_ms - ms) for ms in lengths]
        opened = list(self._opened(now_ms))
        found = [Sums(sums.on_time, sums.late, sums.tentative_ms) for sums in self._summed[1]]
        for sums, ms in zip(found, lengths, strict=True):
            for span in opened:
                sums.add(span, now_ms - ms)
        return found

    def _opened(self, now_ms: float) -> Iterable[ServedSpan]:
        """What is not recorded yet."""
        if self._calm is not None:
            yield self._calm
        if self._minute is not None:
            now_ms = max(now_ms, self._seen_ms)
            since = ServedSpan(self._seen_ms, now_ms, tentative_ms=now_ms - self._seen_ms if self._tentative else 0.0)
            yield self._minute.until(self._seen_ms).with_next(since)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
