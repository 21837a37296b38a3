"""The invariants I1 to I7, which hold in every run whatever its faults (design: Replicas, failure, recovery).

A checker sees only the observations: frames, times, states. It imports types, but no code of the machines. Every anomaly has a
name and a sentence (ANOMALIES) before it has a check.

I3. `simulation.obligations` says when I3 and I4 are owed. A new result must be given within X of the first tick at which some
source had logged past its time: this is R8's ingest for a row as well as for the window that closes there. A result is new if
no boundary that the client has covers it (R14): no stable boundary past its time, and no tentative one that came after its
input was logged.

In addition, if each result depends on one row only, the results of the streams that were never cut must be given within X
('withheld'), and of several replicas one must always be live ('nobody-live'). That holds for chains only: where rows meet
again by several paths, each path's bucket has its own deadline (R8), and rows that come after the first of them are kept for
the redo (R11).

I4 is owed in scenarios with one cut of one source stream, to all of its readers or to one, if cut + bucket + boundary
interval + the time of a reconnect (one boundary interval more, and 20 ms) < the smallest alpha*X that any instance had at any
time (R13).

If only one of several replicas fails, and the others are STABLE, the client must not notice ('unmasked'), if silence is
detected in less than alpha*X: three boundary intervals, a bucket, and two intervals more for the switch. A replica that was
dead or frozen, and not cut off from its inputs, sends no tentative rows either: the rows that it catches up with are not
overdue (R12).

Tentative rows. If each result depends on one row only, tentative rows are some of those of a run without failures, whatever
fails: between two UNDOs the client gets none of them more often than in that run ('invented').

Consolidation. The rows that a client got, with tentative rows added when given and subtracted when undone, must equal the
stable rows of a run without failures: I1 together with 'tentative-left'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
import pyarrow as pa

from boreal.model.codec import encode
from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, RecDone, Start, State, Undo
from boreal.query.plan import EGRESS, Plan
from boreal.query.spec import Aggregate, Distinct, Hold, Top
from reconcile.events import InstanceId
from simulation.obligations import failures
from simulation.oracle import Oracle, difference, shown
from simulation.run import Observation
from simulation.scenario import HELD_BACK_BYTES, Scenario
from sunion.port import EARLY

ANOMALIES = {
    "stable-differs": ("I1", "A log's stable rows are not byte for byte those of the run without failures."),
    "oracle": ("I1", "The run without failures gave other rows than plain Python makes of its input."),
    "stable-incomplete": ("I1", "A log ended, settled, without all the stable rows of the run without failures."),
    "stable-repeated": ("I2", "A stable row was written with an id that the log already held."),
    "stable-lost": ("I2", "Stable ids were skipped: a row that no reader will ever see."),
    "stable-undone": ("I2", "An UNDO reaches below the last stable id."),
    "stable-early": ("I2", "A stable row was written after tentative ones that no UNDO had revoked."),
    "out-of-order": ("I2", "A row came after one of a later time, or after a boundary that promised there was none."),
    "boundary-fell": ("I2", "A stable boundary fell within a producer's incarnation, or rose over tentative rows."),
    "epoch-fell": ("I2", "An epoch fell, or did not grow at an UNDO, so that ids of tentative rows are ambiguous (R2)."),
    "fenced": ("I2", "A reader got a frame that a dead incarnation wrote after its successor's START (R25)."),
    "invented": ("I6", "The client got a tentative row that the run without failures does not have, or has less often."),
    "late": ("I3", "A new result took longer than X, though an input path was available."),
    "withheld": ("I3", "A row whose inputs were all there was not given within X."),
    "nobody-live": ("I3", "All replicas of a fragment reconciled at once, although they could reach each other (R22)."),
    "needless-tentative": ("I4", "A failure shorter than alpha*X left a tentative row."),
    "unmasked": ("I4", "One of several replicas failed for a while, and the client got a tentative row."),
    "misnamed": ("I4", "A tentative result did not name a stream that was cut off, or named one that was not cut off."),
    "records": ("I2", "The client's records, replayed, do not give its stable rows, or contradict each other."),
    "unasked": ("I3", "A replica answered tentatively although the policy is to suspend."),
    "impatient": ("I3", "A replica answered tentatively before the deadline, although the policy is to delay."),
    "sluggish": ("I3", "During a failure a result waited for missing inputs, under the policy process."),
    "no-cause": ("I4", "Tentative results of one failure, in one log, have no cause, or several."),
    "not-of-these-rows": ("I4", "A tentative window result is not that of the rows of the streams that were there."),
    "hesitant": ("I5", "A failure had healed, and a replica still answered tentatively for longer than its turn takes."),
    "alpha-shared-wrongly": ("I3", "An instance may hold a bucket back for longer than one that reads from it."),
    "starved": ("I5", "Stable output trailed the stable input for longer than R16 allows."),
    "thrashing": ("I5", "A log was undone again and again, more often than failures come and go."),
    "alarmed": ("I5", "An instance was in UP_FAILURE although nothing had failed: its input was only out of order or idle."),
    "costly": ("I5", "Early answers were repeated far more often than there were new rows."),
    "unsettled": ("I5", "After the last heal an instance did not become STABLE with all its input read."),
    "tentative-left": ("I5", "After the last heal the client still held tentative rows."),
    "unfinished": ("I5", "After the last heal the client did not get the end of its stream."),
    "rec-done-missing": ("I5", "A correction was not declared complete before new tentative rows, or ever (R18)."),
    "tentative-repeated": ("I6", "A tentative row came for a time that the log's tentative boundary had passed."),
    "ids-broken": ("I6", "Tentative ids do not continue from the rows of the log."),
    "protocol": ("I6", "A port got frames that no switch may give it."),
    "trimmed": ("I7", "A reader with a valid claim asked for rows that had been trimmed away."),
    "never-trimmed": ("I7", "No frame was trimmed, although every reader was far past it: logs would grow for ever."),
    "memory": ("memory", "An instance's ports held more than its memory limit and the rows of one event."),
    "mute": ("I3", "An instance that was not stopped gave no sign of life for longer than the silence timeout."),
    "crash": ("crash", "A machine raised an error."),
}

MOST_TENTATIVE, FEW_TENTATIVE = 30, 5_000
"""The bound for early answers: each row several times, and a few rows as often as X requires."""
ROWWISE = ("filter", "map", "union")
_PLAIN = Origin("", 1)
SECOND_US = 1_000_000
LATENESS_US = 300_000
"""How long after a heal readers may still be catching up."""
MOST_UNDOS_A_SECOND = 12
"""A failure needs a boundary interval to be noticed and another to heal, so correct logs have fewer."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One anomaly in a run."""

    name: str
    """A key of ANOMALIES."""
    message: str
    """Where and when it occurred."""

    @property
    def invariant(self) -> str:
        return ANOMALIES[self.name][0]

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def check(scenario: Scenario, observed: Observation, reference: Observation) -> list[Violation]:
    """All anomalies of a run. reference: the run of the same input without failures."""
    found: list[Violation] = []
    may_skip = scenario.may_skip or scenario.loses_state
    output = scenario.plan.output.name
    histories = {log: LogHistory.of(log, frames, may_skip and log.stream != output) for log, frames in observed.frames.items()}
    for history in histories.values():
        found += history.violations
    found += _compare(histories, reference, observed.settled and observed.error is None)
    found += _errors(observed)
    if observed.error is not None:
        return found
    clients = [history for log, history in histories.items() if log.stream == output]
    assert clients, "the egress writes from the start"
    found += _settling(observed, clients, histories)
    found += _hesitation(scenario, observed)
    found += [Violation("records", fault) for fault in observed.record_faults]
    if not any(strike.kind == "replan" for strike in scenario.strikes):
        found += _holding(scenario, observed, histories)
    found += _alpha_sharing(scenario, observed)
    found += _alarms(scenario, observed)
    found += _starvation(scenario, observed)
    found += _thrashing(observed)
    found += _trimming(scenario, observed)
    if all(node.spec.kind in ROWWISE for fragment in scenario.plan.fragments for node in fragment.nodes):
        found += [violation for client in clients for violation in _invention(observed, reference, client.log)]
    if scenario.owes_turns:
        found += _staggering(scenario, observed)
    for client in clients:
        if scenario.owes_delay:
            found += _delay(scenario, observed, client)
        if scenario.is_rowwise:
            found += _withholding(scenario, observed, client.log)
        if scenario.owes_names:
            found += _naming(scenario, observed, client.log)
            found += _partial_windows(scenario, observed, client.log)
            found += _processing(scenario, observed, client.log)
    if scenario.owes_masking:
        found += _masking(scenario, observed, clients, histories)
    for client in clients if scenario.owes_early else ():
        found += _earliness(client)
    if scenario.owes_silence:
        found += _silence(scenario, observed, histories)
    return found


def _errors(observed: Observation) -> Iterator[Violation]:
    if observed.error is not None:
        kind, message, where = observed.error
        name = {"TrimmedError": "trimmed", "ProtocolError": "protocol"}.get(kind, "crash")
        yield Violation(name, f"{kind} at {where}: {message}")
    for read in observed.fenced_reads:
        yield Violation("fenced", read)
    for breach in observed.breaches:
        yield Violation("trimmed", breach)
    for held in observed.overfull:
        yield Violation("memory", held)
    for silent in observed.mute:
        yield Violation("mute", silent)


# One log's history.


def readable(frames: list[tuple[int, Frame]]) -> Iterator[tuple[int, Frame]]:
    """A log as every reader sees it, including the client: frames that a dead incarnation writes after its successor's START
    are ignored (R25), and so is a repeated START."""
    newest = 0
    for when, frame in frames:
        incarnation = frame.origin.incarnation
        if incarnation > newest or (incarnation == newest and not isinstance(frame, Start)):
            newest = incarnation
            yield when, frame


@dataclass(slots=True)
class LogHistory:
    """The state of one log after its frames so far, and the violations in them (I2, I6)."""

    log: LogId
    """The log."""
    may_skip: bool = False
    """Whether a new incarnation may leave out ids, as its START says (R27); never in the client's log."""
    violations: list[Violation] = field(default_factory=list)
    """All violations so far."""
    stable: list[tuple[int, list[pa.RecordBatch]]] = field(default_factory=list)
    """(first id, batches) of each contiguous series of stable rows; more than one only if ids may be left out."""
    next_id: int = 0
    """The id of the next stable row."""
    outstanding: int = 0
    """The number of tentative rows that are not undone."""
    n_tentative: int = 0
    """The number of all tentative rows."""
    epoch: int = -1
    """The highest epoch."""
    correcting: bool = False
    """Whether an UNDO has no REC_DONE yet."""
    stable_time: int = -INFINITY
    """The highest time of a stable row."""
    stable_through: int = -INFINITY
    """The highest stable boundary."""
    incarnation_through: int = -INFINITY
    """The last stable boundary of the current incarnation."""
    tentative_time: int = -INFINITY
    """The time of the last tentative row that is not undone."""
    tentative_through: int = -INFINITY
    """The highest tentative boundary that is not undone."""
    cause: str | None = None
    """The cause of the tentative rows that are not undone; None if there are none."""

    @staticmethod
    def of(log: LogId, frames: list[tuple[int, Frame]], may_skip: bool = False) -> LogHistory:
        history = LogHistory(log, may_skip)
        for when, frame in readable(frames):
            history.take(when, frame)
        return history

    def take(self, when: int, frame: Frame) -> None:
        if isinstance(frame, Data | Boundary) and frame.tentative:
            self._take_cause(when, frame.cause)
        match frame:
            case Data():
                self._take_rows(when, frame)
            case Boundary():
                self._take_boundary(when, frame)
            case Undo():
                self.correcting = True
                if frame.last_id < self.next_id - 1:
                    self._add("stable-undone", when, f"UNDO({frame.last_id}), stable through {self.next_id - 1}")
                elif frame.last_id != self.next_id - 1:
                    self._add("ids-broken", when, f"UNDO({frame.last_id}), stable through {self.next_id - 1}")
                if frame.epoch <= self.epoch:
                    self._add("epoch-fell", when, f"UNDO of epoch {frame.epoch} after {self.epoch}")
                self._revoke()
            case Start():
                # A new incarnation may give lower boundaries for a while: they are true, and readers ignore them (R3).
                self.incarnation_through, self.correcting = -INFINITY, False
                if self.may_skip and frame.next_id > self.next_id:
                    self.next_id = frame.next_id
                    self.stable.append((self.next_id, []))
                self._revoke()
            case RecDone():
                self.correcting = False
            case _:
                assert_never(frame)
        if frame.epoch < self.epoch:
            self._add("epoch-fell", when, f"{type(frame).__name__} of epoch {frame.epoch} after {self.epoch}")
        self.epoch = max(self.epoch, frame.epoch)

    def _take_rows(self, when: int, frame: Data) -> None:
        times = frame.batch.column(0).to_numpy()
        first, last = int(times[0]), int(times[-1])
        if len(times) > 1 and bool((times[1:] < times[:-1]).any()):
            self._add("out-of-order", when, "within a frame")
        if frame.tentative:
            if self.correcting:
                self._add("rec-done-missing", when, f"tentative rows from id {frame.first_id} in a correction")
            if frame.first_id != self.next_id + self.outstanding:
                held = self.next_id + self.outstanding
                self._add("ids-broken", when, f"tentative rows from id {frame.first_id}, the log holds those below {held}")
            if first < max(self.tentative_through, self.stable_through):
                self._add("tentative-repeated", when, f"time {first}, tentative through {self.tentative_through}")
            if first < max(self.tentative_time, self.stable_time):
                self._add("out-of-order", when, f"tentative time {first} after {self.tentative_time}")
            self.outstanding += len(times)
            self.n_tentative += len(times)
            self.tentative_time = last
            return
        if self.outstanding:
            self._add("stable-early", when, f"id {frame.first_id} with {self.outstanding} tentative rows standing")
        if frame.first_id != self.next_id:
            name = "stable-lost" if frame.first_id > self.next_id else "stable-repeated"
            self._add(name, when, f"rows from id {frame.first_id}, expected {self.next_id}")
        if first < max(self.stable_time, self.stable_through):
            self._add("out-of-order", when, f"time {first} after {self.stable_time}, through {self.stable_through}")
        self.next_id = max(self.next_id, frame.first_id + len(times))
        self.stable_time = max(self.stable_time, last)
        if not self.stable:
            self.stable.append((0, []))
        self.stable[-1][1].append(frame.batch)

    def _take_boundary(self, when: int, frame: Boundary) -> None:
        if frame.tentative:
            self.tentative_through = max(self.tentative_through, frame.time)
            return
        if frame.time < self.incarnation_through:
            self._add("boundary-fell", when, f"from {self.incarnation_through} to {frame.time}")
        elif frame.time > self.stable_through and self.outstanding:
            self._add("boundary-fell", when, f"to {frame.time} over {self.outstanding} tentative rows")
        self.incarnation_through = frame.time
        self.stable_through = max(self.stable_through, frame.time)

    def _take_cause(self, when: int, cause: str) -> None:
        # Early answers may be followed by those of a failure, with its cause.
        if not cause or self.cause not in (None, EARLY, cause):
            self._add("no-cause", when, f"{cause or 'none'} after {self.cause}")
        self.cause = cause

    def _revoke(self) -> None:
        self.outstanding, self.cause = 0, None
        self.tentative_time = self.tentative_through = -INFINITY

    def _add(self, name: str, when: int, message: str) -> None:
        self.violations.append(Violation(name, f"{self.log} at {when}: {message}"))


# I1: comparison with the run without failures.


def _compare(histories: Mapping[LogId, LogHistory], reference: Observation, is_settled: bool) -> Iterator[Violation]:
    due = {log.key: LogHistory.of(log, frames) for log, frames in reference.frames.items()}
    whole = {key: (rows := _whole(history.stable), _bytes(rows)) for key, history in due.items()}
    for log, history in histories.items():
        expected, expected_bytes = whole[log.key]
        if is_settled and history.next_id < due[log.key].next_id:
            yield Violation("stable-incomplete", f"{log} has {history.next_id} stable rows instead of {due[log.key].next_id}")
        for first_id, batches in history.stable:
            batch = _whole([(first_id, batches)])
            if batch is not None and (first_id or _bytes(batch) != expected_bytes):
                yield from _first_difference(log, first_id, batch, expected)


def _whole(stretches: list[tuple[int, list[pa.RecordBatch]]]) -> pa.RecordBatch | None:
    batches = [batch for _, batches in stretches for batch in batches]
    if not batches:
        return None
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _bytes(batch: pa.RecordBatch | None) -> bytes:
    """The rows with their times as bytes, with ids from 0: equal rows give equal bytes (R7)."""
    return b"" if batch is None else encode(Data(_PLAIN, 0, 0, batch, False, ((INFINITY, 0),), 0))


def _first_difference(log: LogId, first_id: int, batch: pa.RecordBatch, expected: pa.RecordBatch | None) -> Iterator[Violation]:
    theirs = expected.slice(first_id, batch.num_rows) if expected is not None else batch.slice(0, 0)
    ours = batch.slice(0, theirs.num_rows)
    if ours.num_rows and _bytes(ours) != _bytes(theirs):
        for row, (one, other) in enumerate(zip(ours.to_pylist(), theirs.to_pylist(), strict=True), first_id):
            if repr(one) != repr(other):
                yield Violation("stable-differs", f"{log} id {row}: {one} instead of {other}")
                return
        yield Violation("stable-differs", f"{log}: bytes differ")
    elif theirs.num_rows < batch.num_rows:
        yield Violation("stable-differs", f"{log} has more stable rows than there are: {first_id + batch.num_rows}")


def check_operators(oracle: Oracle, reference: Observation) -> Iterator[Violation]:
    """Compare the run without failures with the oracle: the rows of every log, and their order (R5, R6)."""
    for log, frames in reference.frames.items():
        differs = difference(oracle, log.key, _whole(LogHistory.of(log, frames).stable))
        if differs is not None:
            yield Violation("oracle", f"{log}: {differs}")


# I5: convergence.


def _settling(observed: Observation, clients: list[LogHistory], histories: Mapping[LogId, LogHistory]) -> Iterator[Violation]:
    if not observed.settled:
        yield Violation("unsettled", f"{observed.unsettled} at {observed.ended_at}, quiet since {observed.quiet_at}")
        return
    for client in clients:
        if client.outstanding:
            yield Violation("tentative-left", f"{client.log}: {client.outstanding} rows")
        if client.stable_through < INFINITY:
            yield Violation("unfinished", f"{client.log}: stable through {client.stable_through}")
    for log, history in histories.items():
        if history.correcting:
            yield Violation("rec-done-missing", f"{log} at the end")


def _starvation(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """R16: after stable_lag_max only the redo itself, and the turns of the other replicas, may delay stable rows. Owed only if
    memory holds the rows of the redo: otherwise they may be in a log that is out of reach."""
    plan = scenario.plan
    if plan.memory_bytes < HELD_BACK_BYTES:
        return
    turns = max(len(fragment.replicas) for fragment in plan.fragments)
    # If only streams are cut, partners answer at once; otherwise each turn may wait for one that does not (R22).
    answer = 1 if all(strike.kind == "cut_stream" for strike in scenario.strikes) else 6
    most = len(plan.fragments) * observed.x_us_max if scenario.owes_early else plan.stable_lag_of(observed.x_us_max)
    # A redo on a host in another process waits for the batch that runs and takes the next one; each batch may last 1.5 times
    # the usual. The next turn begins only when its end is confirmed.
    redo = 3 * scenario.batch_us
    allowed = most + turns * (answer * plan.heartbeat_us + redo) + 100_000
    for span in observed.trailing:
        if span.until_us - span.since_us > allowed:
            yield Violation("starved", f"{span.who} from {span.since_us} to {span.until_us}, {allowed} allowed")


def _hesitation(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """A replica that can correct does so when it is its turn (R16, R22): otherwise it gives tentative results whose stable
    versions could have been sent."""
    plan = scenario.plan
    turns = max(len(fragment.replicas) for fragment in plan.fragments)
    answer = 1 if all(strike.kind == "cut_stream" for strike in scenario.strikes) else 6
    heartbeat = max([plan.heartbeat_us, *(dict(s.changes).get("heartbeat_us", 0) for s in scenario.strikes)])
    most_hop = max([0, *(by for _, by in scenario.hops_us), *(s.amount for s in scenario.strikes if s.kind == "slow")])
    allowed = turns * answer * heartbeat + 100_000 + 4 * plan.boundary_interval_us + 6 * scenario.batch_us + 4 * most_hop
    for span in observed.hesitant:
        if span.until_us - span.since_us > allowed:
            yield Violation("hesitant", f"{span.who} from {span.since_us} to {span.until_us}, {allowed} allowed")


def _alpha_sharing(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """R9: an instance that is nearer to the client has at least as much of X left as those that it reads from."""
    for producer, reader, most, least in observed.unfair:
        yield Violation("alpha-shared-wrongly", f"{producer} has {most} us, its reader {reader} {least}")


def _thrashing(observed: Observation) -> Iterator[Violation]:
    for log, frames in observed.frames.items():
        undone = [when for when, frame in frames if isinstance(frame, Undo)]
        for first, last in zip(undone, undone[MOST_UNDOS_A_SECOND:], strict=False):
            if last - first < SECOND_US:
                yield Violation("thrashing", f"{log}: {len(undone)} UNDOs, the first at {undone[0]}")
                break


def _trimming(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """Owed when there were no faults for longer than any window and the acknowledgements take. State that windows cannot
    rebuild waits for its own checkpoints, and all wait for a stream that stands still."""
    stalled = sum(until - since for since, until in scenario.stalls.values()) * scenario.plan.boundary_interval_us
    calm = observed.ended_at - observed.quiet_at - stalled
    least = 1.5 * SECOND_US + 2 * scenario.lag_us + 4 * scenario.rest_us
    if calm > least and observed.trimmed == 0 and not scenario.is_unbounded:
        yield Violation("never-trimmed", f"after {calm} us without faults")


# I3 and I4: obligations to the client.


def _delay(scenario: Scenario, observed: Observation, client: LogHistory) -> Iterator[Violation]:
    """R14: a row is new unless a boundary of its time or later covered it: a stable one, or a tentative one that was given
    after the row was logged. A boundary with the cause 'early' also covers rows that are out of order."""
    bucket = scenario.plan.bucket_us
    spoken = -INFINITY
    tentative: list[tuple[int, int]] = []
    out_of_order = _out_of_order(scenario) if scenario.lag_us else None
    for when, frame in readable(observed.frames[client.log]):
        if isinstance(frame, Boundary):
            time = frame.time if frame.time >= INFINITY else frame.time - frame.time % bucket
            if not frame.tentative or (frame.cause == EARLY and scenario.lag_us):
                spoken = max(spoken, time)
            while tentative and tentative[-1][1] <= time:
                tentative.pop()
            tentative.append((when, time))
        elif isinstance(frame, Data):
            times = frame.batch.column(0).to_numpy()
            logged = _ingest(observed, times - scenario.lag_us)
            reached = np.array([time for _, time in tentative] + [-INFINITY], dtype=np.int64)
            given = np.array([at for at, _ in tentative], dtype=np.int64)
            # A row that is logged while its stream is cut off comes after the cut, whatever boundaries came before.
            given_before = np.where(_in_cut(scenario, logged), 0, np.searchsorted(given, logged, side="left"))
            new = (times >= spoken) & (times >= reached[given_before])
            if out_of_order is not None:
                new &= ~np.isin(times, out_of_order)
            if not new.any():
                continue
            delays = when - _available(scenario, observed, times[new])
            if int(delays.max()) > scenario.plan.delay_threshold_us:
                row = int(times[new][int(delays.argmax())])
                yield Violation("late", f"time {row} given at {when}, {int(delays.max())} us after its ingest")
                return


def _in_cut(scenario: Scenario, logged: np.ndarray) -> np.ndarray:
    """Whether, at each of these times, some stream is cut off from all readers."""
    cuts = [strike for strike in scenario.strikes if strike.kind == "cut_stream"]
    return sum(((logged >= cut.at_us) & (logged <= cut.end_us) for cut in cuts), np.zeros(len(logged), dtype=bool))


def _available(scenario: Scenario, observed: Observation, times: np.ndarray) -> np.ndarray:
    """As `_ingest`; if boundaries are behind rows, the first time at which a row of such a time or a later one was logged, but
    not before a row of exactly this time."""
    known = _ingest(observed, times)
    if not scenario.lag_us:
        return known
    ticks = np.array([when for when, _ in observed.ticks], dtype=np.int64)
    feeds = scenario.uncut_feeds.values()
    all_times = np.concatenate([feed.batch.column(0).to_numpy()[: feed.counts[-1]] for feed in feeds])
    all_logged = np.concatenate([ticks[np.repeat(np.arange(feed.intervals), np.diff(feed.counts))] for feed in feeds])
    order = np.argsort(all_times, kind="stable")
    earliest = np.minimum.accumulate(all_logged[order][::-1])[::-1]
    first = np.searchsorted(all_times[order], times, side="left")
    available: np.ndarray = np.minimum(known, np.append(earliest, INFINITY)[first])
    # An input row cannot be given before it is logged, whatever another stream has logged.
    last = np.searchsorted(all_times[order], times, side="right")
    own = np.array([all_logged[order][a:b].max(initial=0) for a, b in zip(first, last, strict=True)], dtype=np.int64)
    given: np.ndarray = np.maximum(available, own)
    return given


def _out_of_order(scenario: Scenario) -> np.ndarray:
    """The times of rows that come after a row of a later time of their stream."""
    times = (feed.batch.column(0).to_numpy() for feed in scenario.feeds.values())
    return np.concatenate([own[own < np.maximum.accumulate(own)] for own in times if len(own)] or [np.empty(0, np.int64)])


def _ingest(observed: Observation, times: np.ndarray) -> np.ndarray:
    """When some source had first logged past each of these times."""
    when = np.array([when for when, _ in observed.ticks], dtype=np.int64)
    reached = np.array([event for _, event in observed.ticks], dtype=np.int64)
    return when[np.minimum(np.searchsorted(reached, times, side="right"), len(when) - 1)]


def _withholding(scenario: Scenario, observed: Observation, client: LogId) -> Iterator[Violation]:
    """The results of the streams that were never cut are given within X."""
    given: dict[str, int] = {}
    for when, frame in readable(observed.frames[client]):
        if isinstance(frame, Data):
            for row in shown(frame.batch):
                given.setdefault(row, when)
    x = scenario.plan.delay_threshold_us
    # Rows between the tentative suffixes of two replicas are lost when a reader changes from one to the other.
    changes = [at for s in scenario.strikes if s.kind == "cut_stream_to_replica" for at in (s.at_us, s.end_us)]
    due = Oracle(scenario.plan, scenario.uncut_feeds).batch(client.key)
    for row, ingest in zip(shown(due), _ingest(observed, due.column(0).to_numpy()).tolist(), strict=True):
        at = given.get(row, INFINITY)
        if at > ingest + x and not any(abs(ingest - change) <= x for change in changes):
            yield Violation("withheld", f"{row}, ingested at {ingest}, given at {'no time' if at == INFINITY else at}")
            return


def _invention(observed: Observation, reference: Observation, client: LogId) -> Iterator[Violation]:
    whole = _whole(LogHistory.of(client, reference.frames[client._replace(replica="r0")]).stable)
    due = Counter(shown(whole) if whole is not None else [])
    stable: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for when, frame in readable(observed.frames[client]):
        if isinstance(frame, Undo | Start):
            given = Counter(stable)
        elif isinstance(frame, Data):
            rows = Counter(shown(frame.batch))
            given += rows
            if not frame.tentative:
                stable += rows
            elif any(given[row] > due[row] for row in rows):
                row = next(row for row in rows if given[row] > due[row])
                yield Violation("invented", f"{row} at {when}, {given[row]} times instead of {due[row]}")
                return


@dataclass(frozen=True, slots=True)
class _StreamCut:
    """A span in which a stream was cut off from all its readers."""

    stream: str
    since_us: int  # run time
    until_us: int
    from_event: int  # the event times that were logged in the span lie in [from_event, to_event)
    to_event: int


def _cuts(scenario: Scenario, observed: Observation) -> list[_StreamCut]:
    """The cuts of streams; overlapping cuts of one stream are merged. A calm or loaded source may say nothing for a
    pause after one."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for strike in sorted(scenario.strikes, key=lambda strike: strike.at_us):
        if strike.kind != "cut_stream":
            continue
        merged = spans.setdefault(strike.place, [])
        if merged and strike.at_us <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], strike.end_us))
        else:
            merged.append((strike.at_us, strike.end_us))
    late_us = LATENESS_US + scenario.pause_us
    return [
        _StreamCut(stream, since, until, _reached(observed, since), _reached(observed, until + late_us))
        for stream, merged in spans.items()
        for since, until in merged
    ]


def _reached(observed: Observation, when: int) -> int:
    """The event time that the sources had logged by then."""
    return max((event for at, event in observed.ticks if at <= when), default=-INFINITY)


def _naming(scenario: Scenario, observed: Observation, client: LogId) -> Iterator[Violation]:
    """A tentative result names each stream that has been cut off since before its bucket's end, and no stream that was there
    for all of it. A later fragment that did not wait for an earlier one names that one's operator instead."""
    plan, cuts = scenario.plan, _cuts(scenario, observed)
    ended = {n: scenario.start_us + f.intervals * plan.boundary_interval_us for n, f in scenario.feeds.items()}
    for when, frame in readable(observed.frames[client]):
        if not isinstance(frame, Data | Boundary) or not frame.tentative:
            continue
        end = min(frame.t_max if isinstance(frame, Data) else frame.time, INFINITY)
        for cut in cuts if scenario.feeds.keys() >= set(frame.missing) else ():
            # The first fragment may have given it up to X ago.
            since = cut.since_us + plan.delay_threshold_us
            is_away = since < when < cut.until_us and cut.from_event + plan.boundary_interval_us < end
            # A stream whose end came before the cut is not missing.
            if is_away and cut.stream not in frame.missing and cut.from_event < ended[cut.stream]:
                yield Violation("misnamed", f"{cut.stream} is cut off at {when}, and {frame.missing} are named for {end}")
                return
        for name in frame.missing:
            if name in scenario.feeds and not any(_explains(scenario, cut, name, when, end) for cut in cuts):
                yield Violation("misnamed", f"{name} is named at {when} for {end}, and was there")
                return


def _explains(scenario: Scenario, cut: _StreamCut, name: str, when: int, end: int) -> bool:
    """Whether a cut explains that a stream is missing from a bucket. Rows that were logged just before it may be delayed
    too, and a calm or loaded source had said nothing of them yet."""
    plan = scenario.plan
    begins, known = end - plan.bucket_us, cut.from_event - plan.boundary_interval_us - scenario.pause_us
    return cut.stream == name and cut.since_us < when and known < end and (begins < cut.to_event or end >= INFINITY)


def _holding(scenario: Scenario, observed: Observation, histories: Mapping[LogId, LogHistory]) -> Iterator[Violation]:
    """R11: `suspend` gives no tentative rows; `delay` gives each bucket at its deadline and no sooner."""
    plan, policy = scenario.plan, scenario.plan.policy
    tentative = [log for log, history in histories.items() if history.n_tentative]
    if policy.failure is Hold.SUSPEND and tentative:
        yield Violation("unasked", f"{tentative[0]} under {policy}")
    is_new_x = any(strike.kind == "threshold" for strike in scenario.strikes)
    if {policy.failure, policy.stabilization} != {Hold.DELAY} or is_new_x or scenario.lag_us or scenario.jumps:
        return
    # A bucket's deadline counts from its oldest row, and clocks may be ahead.
    early = plan.bucket_us + 2 * plan.boundary_interval_us + max(scenario.skews.values(), default=0)
    # After streams have ended, open buckets are due by their ends; and after a heal, a backlog is due as a whole.
    first_end = min(feed.intervals for feed in scenario.feeds.values()) * plan.boundary_interval_us
    first_end = min([first_end, *(strike.end_us for strike in scenario.strikes)])
    for log in tentative:
        for when, frame in observed.frames[log]:
            if isinstance(frame, Data) and frame.tentative and when < first_end:
                # A session or a window may end in the last bucket that has rows, later than all of them.
                begins = frame.batch.column(0).to_numpy() // plan.bucket_us * plan.bucket_us
                delays = when - _ingest(observed, begins)
                if int(delays.min()) < observed.alpha_x_us - early:
                    yield Violation("impatient", f"{log} at {when}, {delays.min()} us after its ingest")
                    return


def _processing(scenario: Scenario, observed: Observation, client: LogId) -> Iterator[Violation]:
    """R11: `process` holds back the first bucket of a failure; later ones leave when all present inputs have passed them."""
    plan, policy, cuts = scenario.plan, scenario.plan.policy, _cuts(scenario, observed)
    if {policy.failure, policy.stabilization} != {Hold.PROCESS} or len(cuts) != 1:
        return
    cut = cuts[0]
    # Open windows of a stream that has ended wait for the stream that is cut off as long as any bucket does.
    first_end = min(feed.intervals for feed in scenario.feeds.values()) * plan.boundary_interval_us
    hops = sum(by_us for _, by_us in scenario.hops_us) * (len(plan.fragments) + 1)
    most = plan.bucket_us + 3 * plan.boundary_interval_us + hops + 100_000
    for when, frame in readable(observed.frames[client]):
        is_amid = cut.since_us + plan.delay_threshold_us + LATENESS_US < when < min(cut.until_us, first_end)
        if is_amid and isinstance(frame, Data) and frame.tentative:
            delays = when - _ingest(observed, frame.batch.column(0).to_numpy())
            if int(delays.max()) > most:
                yield Violation("sluggish", f"{int(delays.max())} us after its ingest at {when}, {most} allowed")
                return


WINDOWED = {"aggregate", "top"}
_APPROXIMATE = {"spread", "guess", "key_guess"}
"""The columns of which the oracle knows only about what they are."""


def _partial_windows(scenario: Scenario, observed: Observation, client: LogId) -> Iterator[Violation]:
    """In a query with one fragment, while only one stream is cut: a window that lies completely in the cut gives the result of
    the other streams' rows."""
    plan, cuts = scenario.plan, _cuts(scenario, observed)
    nodes = plan.fragments[0].nodes
    if len(plan.fragments) != 2 or len(scenario.cut_streams) != 1 or not any(n.spec.kind in WINDOWED for n in nodes):
        return
    if any(node.spec.kind in ("join", "python") or getattr(node.spec, "window", True) is None for node in nodes):
        return
    if not _APPROXIMATE.isdisjoint(plan.output.schema.types):
        return  # an `ApproximateValue` cannot be compared as text
    due: set[str] | None = None
    for when, frame in readable(observed.frames[client]):
        if not isinstance(frame, Data) or not frame.tentative:
            continue
        cut = next((cut for cut in cuts if cut.since_us < when < cut.until_us), None)
        starts = frame.batch.column(1).to_numpy()
        rows = [row for row, start in zip(shown(frame.batch), starts, strict=True) if cut and start >= _settled(plan, cut)]
        if rows and due is None:
            due = set(shown(Oracle(plan, scenario.uncut_feeds).batch(client.key)))
        for row in rows:
            if due is not None and row not in due:
                yield Violation("not-of-these-rows", f"{row} at {when}")
                return


def _settled(plan: Plan, cut: _StreamCut) -> int:
    """The time from which on a window depends on no row of the stream that was cut, even if windows of operators before it
    begin earlier."""
    windows = [node.spec.window for node in plan.fragments[0].nodes if isinstance(node.spec, Aggregate | Distinct | Top)]
    return cut.from_event + sum(window.size_us for window in windows[:-1] if window is not None)


def _staggering(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """R22: with a policy that answers during the correction, replicas take turns. Exempt is a replica that was away itself and
    corrects the backlog at once."""
    if scenario.plan.policy.stabilization == "suspend":
        return
    replicas = {f.name: len(f.replicas) if f.name != EGRESS else 1 for f in scenario.plan.fragments}
    correcting: dict[tuple[str, int], set[str]] = {}
    returned: dict[InstanceId, int] = {}
    before: dict[InstanceId, State | None] = {}
    for when, who, state in observed.states:
        group = correcting.setdefault((who.fragment, who.shard), set())
        if before.get(who) is State.RECOVERING:
            returned[who] = when
        before[who] = state
        if state is State.STABILIZATION and when - returned.get(who, -INFINITY) <= scenario.plan.heartbeat_us:
            continue
        if state is not State.STABILIZATION:
            group.discard(who.replica)
            continue
        group.add(who.replica)
        if len(group) == replicas[who.fragment] > 1:
            yield Violation("nobody-live", f"{who.fragment}.{who.shard} at {when}")
            return


def _masking(
    scenario: Scenario, observed: Observation, clients: list[LogHistory], histories: Mapping[LogId, LogHistory]
) -> Iterator[Violation]:
    plan = scenario.plan
    if plan.bucket_us + 5 * plan.boundary_interval_us + 20_000 + _slowness(scenario) >= _held_us(scenario, observed):
        return
    was_cut = any(strike.kind == "cut_replica" for strike in scenario.strikes)
    for history in clients if was_cut else histories.values():
        if history.n_tentative:
            yield Violation("unmasked", f"{history.log}: {history.n_tentative} rows, alpha*X {observed.alpha_x_us}")


def _alarms(scenario: Scenario, observed: Observation) -> Iterator[Violation]:
    """Before the first fault, and where none comes, no instance is in UP_FAILURE: that a stream is idle, out of order, or ahead
    of another is no failure. At the start, instances may have to wait for one another."""
    first = min((strike.at_us for strike in failures(scenario)), default=INFINITY)
    for when, who, state in observed.states:
        if state is State.UP_FAILURE and SECOND_US // 2 < when < first:
            yield Violation("alarmed", f"{who} at {when}")
            return


def _earliness(client: LogHistory) -> Iterator[Violation]:
    """Rows that are out of order for longer than X are answered early, at a bounded cost."""
    if client.n_tentative > MOST_TENTATIVE * client.next_id + FEW_TENTATIVE:
        yield Violation("costly", f"{client.n_tentative} tentative rows for {client.next_id} stable ones")


def _slowness(scenario: Scenario) -> int:
    """The time that clocks ahead, far places, boundaries behind their rows, calm and loaded instances take off alpha*X."""
    slowest = max(scenario.skews.values(), default=0) + scenario.lag_us + scenario.pause_us
    return slowest + 2 * max((by for _, by in scenario.hops_us), default=0)


def _silence(scenario: Scenario, observed: Observation, histories: Mapping[LogId, LogHistory]) -> Iterator[Violation]:
    plan = scenario.plan
    length = scenario.cut_us + plan.bucket_us + 2 * plan.boundary_interval_us + 20_000 + _slowness(scenario)
    if length >= _held_us(scenario, observed):
        return
    for log, history in histories.items():
        if history.n_tentative:
            yield Violation("needless-tentative", f"{log}: {history.n_tentative} rows, alpha*X {observed.alpha_x_us}")


def _held_us(scenario: Scenario, observed: Observation) -> int:
    """The smallest alpha*X of any instance at any time; at least half of X if machines with wrong wall clocks share a clock:
    otherwise skew, which makes paths look long, would excuse itself."""
    plan = scenario.plan
    is_shared = scenario.walls and plan.alpha_x_us is None
    if is_shared and all(set(fragment.engines) == {"native"} for fragment in plan.fragments):
        return max(observed.alpha_x_us, plan.delay_threshold_us // 2)
    return observed.alpha_x_us
