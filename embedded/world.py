"""The world of an embedded run: processes, logs and links, driven by discrete events.

The same loop runs with three clocks. In the simulator, time jumps and a model says how long work takes. With `--clock skip`,
time jumps and work takes as long as it really took. With `--clock real`, time passes. Each instance has a separate machine,
which is busy while it works. Events that arrive meanwhile wait in its inbox.

Times are run time in microseconds, counted from the start of the run, unless a field says otherwise.
"""

from __future__ import annotations

import heapq
import time as wall
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Data, Frame, LogId, State
from boreal.query.plan import EGRESS, Plan
from embedded.network import Network
from logs.checkpoints import Checkpoint, CheckpointStore
from logs.log import LogStore, TrimmedError
from logs.restart import holds, restarts, saved_by
from reconcile.events import (
    Acknowledge,
    Append,
    CheckpointStored,
    Effect,
    Event,
    Follow,
    Frames,
    InstanceId,
    Obey,
    Read,
    ReadDone,
    Received,
    Reconciled,
    Send,
    StateChanged,
    StoreCheckpoint,
    Tail,
    Tick,
    Unavailable,
    Unfollow,
    Wake,
    Watch,
)
from reconcile.instance import Instance
from reconcile.limits import PRODUCTION, Limits
from reconcile.recovery import Restart, VerifiedCheckpoint

POLL_FRAMES = 256
"""The default for the number of frames that a reader is given at a time."""
UPLOAD_US = 5_000
"""The default for the time that an upload to the checkpoint store takes, in microseconds."""


class Clock(Protocol):
    """Run time, and how long work takes. Both are in microseconds."""

    def wait_until(self, at: int) -> int:
        """Let run time reach `at`. Returns the run time then, which is `at` or later."""
        ...

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        """Do a piece of work. Returns its effects, and how long the machine is busy with it.

        event: the event that the work handles; None for the start of an incarnation.
        """
        ...


class SkipClock:
    """Idle time is skipped. Work takes as long as it really took, without the time in which other programs ran."""

    def wait_until(self, at: int) -> int:
        return at

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        started, worked = wall.perf_counter_ns(), wall.process_time_ns()
        effects = work()
        # With threads in a library, processor time is the longer of the two. With other programs, elapsed time is.
        took = min(wall.perf_counter_ns() - started, wall.process_time_ns() - worked)
        return effects, took // 1_000


class ModelClock:
    """All time is virtual, so a run can be repeated exactly. Work takes a time that depends on its rows and copies alone."""

    def __init__(self, copy_us: int = 0) -> None:
        """copy_us: the time of each copy of a state, in microseconds, in addition to the time for its bytes."""
        self.copy_us = copy_us

    def wait_until(self, at: int) -> int:
        return at

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        effects = work()
        rows = copies = copied = 0
        for effect in effects:
            if isinstance(effect, Append):
                if isinstance(effect.frame, Data):
                    rows += effect.frame.batch.num_rows
            elif isinstance(effect, StoreCheckpoint) and effect.state is not None:
                copies += 1
                copied += len(effect.state)
        if isinstance(event, Frames):
            for _, frame in event.items:
                if isinstance(frame, Data):
                    rows += frame.batch.num_rows
        return effects, 30 + rows // 10 + copied // 500 + copies * self.copy_us


class RealClock:
    """Run time passes as real time. Work takes as long as with `SkipClock`, but at least a microsecond."""

    def __init__(self) -> None:
        self.started = wall.monotonic_ns()

    def wait_until(self, at: int) -> int:
        left = at - self._now()
        if left > 0:
            wall.sleep(left / 1e6)
        return max(at, self._now())

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        effects, took = SkipClock().charge(work, event)
        return effects, max(took, 1)

    def _now(self) -> int:
        return (wall.monotonic_ns() - self.started) // 1_000


@dataclass(slots=True)
class Reader:
    """The position of a process in a log that it follows."""

    log: LogId
    """The log."""
    after_id: int
    """Reading begins after this stable id."""
    offset: int | None = None
    """The next offset to read; None until it has been looked up from `after_id`."""
    is_polling: bool = False
    """Whether a read is scheduled, or its frames have not been processed yet. At most one read is in progress."""
    is_first: bool = True
    """Whether nothing has been read yet. The first read delivers even if the log is empty, because the reader must learn its
    end."""


def _right(now: int) -> int:
    return now


@dataclass(slots=True)
class Process:
    """A process with one instance, on a separate machine."""

    id: InstanceId
    """The instance that the process runs."""
    instance: Instance | None = None
    """The machine of the present incarnation; None if the process is dead."""
    near: frozenset[LogId] = frozenset()
    """The logs that are nearest to the process, as in `Near`."""
    readers: dict[LogId, Reader] = field(default_factory=dict)
    """The followed logs."""
    watched: dict[LogId, bool] = field(default_factory=dict)
    """The watched logs. The value says whether a look at the newest frame is scheduled."""
    waiting_reads: list[Read] = field(default_factory=list)
    """Reads that a cut of the network holds back."""
    inbox: deque[tuple[int, Event]] = field(default_factory=deque)
    """The events that wait, each with the run time of its arrival in microseconds."""
    is_busy: bool = False
    """Whether the process is at work on an event."""
    is_frozen: bool = False
    """Whether the process is stopped. It keeps its state, and continues after `World.thaw`."""
    wake_at: int | None = None
    """The run time of the next timer, in microseconds; None if no timer is set."""
    incarnation: int = 0
    """A number of the incarnation in this run, not the one that its frames carry. It grows at each start and crash, so that
    scheduled actions of an earlier incarnation can be recognised and dropped."""
    clock: Callable[[int], int] = _right
    """The clock of the machine: from run time to clock value, both in microseconds."""
    drag_us: int = 0
    """How much longer than normal each piece of work takes, in microseconds."""
    lost_checkpoints: bool = False
    """Whether the stored checkpoints are lost. The next stored one ends this."""
    held: list[Callable[[], None]] = field(default_factory=list)
    """Actions that a frozen process performs when it is thawed, in order."""
    heard_at: int = 0
    """The run time of the last acknowledgement, or of the start of the incarnation, in microseconds."""
    lost_claim: bool = False
    """Whether the process has lost its claim on the logs that it reads (R27)."""
    place: str = field(init=False)
    """The place of the process in the network. Shards of one replica share it."""

    def __post_init__(self) -> None:
        self.place = f"{self.id.fragment}.{self.id.replica}"

    def forget(self) -> None:
        """End the incarnation: drop its readers, its inbox, and all that it waits for."""
        self.incarnation += 1
        self.readers.clear()
        self.watched.clear()
        self.waiting_reads.clear()
        self.held.clear()
        self.inbox.clear()
        self.is_busy, self.is_frozen, self.wake_at = False, False, None


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the journal: a report of an instance."""

    at: int
    """The run time, in microseconds."""
    who: InstanceId
    """The instance."""
    what: StateChanged | Reconciled
    """The report; StateChanged(None) is a crash."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The properties of the machines of a world."""

    limits: Limits = PRODUCTION
    """The limits of every instance."""
    poll_frames: int = POLL_FRAMES
    """The maximum number of frames that a reader is given at a time."""
    upload_us: int = UPLOAD_US
    """The time that an upload to the checkpoint store takes, in microseconds."""


USUAL = Conditions()
"""The default conditions."""


class World:
    """All processes of one query. `on_append(log, frame, now)` is called after every frame that is logged.

    A subclass may observe a run, and inject faults, by overriding these methods. Each step calls or schedules the next:

        start       begins an incarnation, from `saved` checkpoints and the logs (`logs_of`) of all replicas
        work        a process begins to handle an event; its effects wait for as long as that takes
        finish      the process has handled the event: its effects are performed, each by `perform`
        stored      a checkpoint of a performed effect has reached the store
        report      an instance reports a change of state or the end of a correction
        poll_later  schedules that a reader reads at its offset
    """

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        logs: LogStore,
        store: CheckpointStore,
        on_append: Callable[[LogId, Frame, int], None],
        conditions: Conditions = USUAL,
    ) -> None:
        self.plan = plan
        self.conditions = conditions
        self.clock = clock
        self.logs = logs
        self.store = store
        self.on_append = on_append
        self.now = 0
        self.network = Network()
        self.journal: list[Entry] = []
        self.processes: dict[InstanceId, Process] = {}
        self.claims: dict[str, dict[InstanceId, int]] = {}
        self.breaches: list[str] = []
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._sequence = 0
        self._homes = {edge.name: fragment.name for fragment in plan.fragments for edge in fragment.outputs}
        self._writers: dict[LogId, str] = {}
        self._listeners: dict[LogId, dict[InstanceId, None]] = {}
        for fragment in plan.fragments:
            for replica in fragment.replicas:
                for shard in range(fragment.shards):
                    who = InstanceId(fragment.name, replica, shard)
                    self.processes[who] = Process(who)
                    self._add_claims(who, fragment.edges)

    def _add_claims(self, who: InstanceId, edges: Iterable) -> None:  # type: ignore[type-arg]
        for edge in edges:
            for producer in range(edge.producers):
                key = f"{edge.name}/{edge.partition(producer, who.shard)}"
                self.claims.setdefault(key, {})[who] = 0

    # Time

    def at(self, when: int, action: Callable[[], object]) -> None:
        """Perform an action at a run time in microseconds. Actions of one time are performed in the order of these calls."""
        self._sequence += 1
        heapq.heappush(self._events, (when if when > self.now else self.now, self._sequence, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Perform scheduled actions in time order, until `is_over` returns True or there are none."""
        events, wait_until = self._events, self.clock.wait_until
        while events and not is_over():
            self.turn(wait_until(events[0][0]))

    @property
    def next_at(self) -> int | None:
        """The run time of the next scheduled action, in microseconds; None if there is none."""
        return self._events[0][0] if self._events else None

    def turn(self, now: int) -> None:
        """Perform the next scheduled action, at the run time `now`, which is not before the time of the action."""
        _, _, action = heapq.heappop(self._events)
        if now > self.now:
            self.now = now
        action()

    # Processes

    def start(self, who: InstanceId) -> None:
        """Begin an incarnation of an instance, from the logs and checkpoints of its own, or else of another replica (R26, R27).

        If all its inputs are trimmed and no other replica can help, it stays dead and a breach is noted.
        """
        process = self.processes[who]
        for restart in self._restarts(process):
            process.forget()
            process.instance = Instance(self.plan_of(who), who, restart, self.conditions.limits)
            process.heard_at, process.lost_claim = self.now, False
            try:
                self.work(process, None)
            except CorruptError:
                continue  # not a checkpoint of this fragment: the next restart is also correct, but reads more again
            return
        process.forget()
        process.instance = None
        self.breaches.append(f"{who} cannot restart: its inputs are trimmed, and no partner can help")

    def plan_of(self, who: InstanceId) -> Plan:
        """The plan that an instance is given."""
        return self.plan

    def crash(self, who: InstanceId, losing_checkpoint: bool = False) -> None:
        """Kill a process at once. What it has logged stays, and its stored checkpoints as well.

        losing_checkpoint: whether its stored checkpoints are lost, too.
        """
        process = self.processes[who]
        process.forget()
        process.instance = None
        process.lost_checkpoints = process.lost_checkpoints or losing_checkpoint
        self.report(who, StateChanged(None))
        for readers in self._listeners.values():
            readers.pop(who, None)

    def freeze(self, who: InstanceId) -> None:
        """Stop a process. Events still arrive, and wait in its inbox."""
        self.processes[who].is_frozen = True

    def thaw(self, who: InstanceId) -> None:
        """Continue a frozen process: first what it had begun, then the events that wait."""
        process = self.processes[who]
        if process.is_frozen:
            process.is_frozen = False
            held, process.held = process.held, []
            for action in held:
                action()
            self._wake(process)

    def deliver(self, who: InstanceId, event: Event) -> None:
        """Put an event into the inbox of a process. An event for a dead process is lost."""
        process = self.processes[who]
        if process.instance is not None:
            process.inbox.append((self.now, event))
            self._wake(process)

    def links_changed(self) -> None:
        """Try all reads again. To be called after a change of the network."""
        for process in self.processes.values():
            for reader in list(process.readers.values()):
                self.poll_later(process, reader)
            for log in list(process.watched):
                self._tail_later(process, log)
            waiting, process.waiting_reads = process.waiting_reads, []
            for read in waiting:
                self._read_later(process, read)

    def _restarts(self, process: Process) -> Iterator[Restart]:
        """The possible restarts, best first: by its own logs and checkpoint, else by those of another replica (R26, R27)."""
        who = process.id
        fragment = self.plan_of(who).fragment(who.fragment)
        family = [who, *(who._replace(replica=replica) for replica in fragment.replicas if replica != who.replica)]
        replicas = [(self.logs_of(member), self.saved(member)) for member in family]
        inputs = {
            f"{edge.name}/{edge.partition(producer, who.shard)}": [
                LogId(edge.name, replica, edge.partition(producer, who.shard)) for replica in self._replicas_of(edge.name)
            ]
            for edge in fragment.edges
            for producer in range(edge.producers)
        }
        return restarts(who, replicas, inputs, self.logs.open)

    def logs_of(self, who: InstanceId) -> list[LogId]:
        """The logs that an instance writes."""
        return [
            LogId(edge.name, who.replica, edge.partition(who.shard, reader))
            for edge in self.plan.fragment(who.fragment).outputs
            for reader in range(edge.partitions)
        ]

    def saved(self, who: InstanceId) -> VerifiedCheckpoint | None:
        """The newest valid checkpoint of an instance; None if there is none.

        It is requested at each start of an instance of the same fragment and shard.
        """
        return None if self.processes[who].lost_checkpoints else saved_by(self.store, who)

    def _wake(self, process: Process) -> None:
        if process.is_busy or process.is_frozen or process.instance is None:
            return
        if process.inbox:
            came_at, event = process.inbox[0]
            if process.instance.is_starving(process.clock(self.now)):
                event = Tick(process.clock(self.now) - (self.now - came_at))
            else:
                process.inbox.popleft()
            self.work(process, event)
            return
        deadline = self.now + process.instance.next_deadline() - process.clock(self.now)
        if deadline <= self.now:
            self.work(process, Tick())
        elif process.wake_at is None or deadline < process.wake_at or process.wake_at <= self.now:
            process.wake_at = deadline
            self.at(deadline, partial(self._timer, process, process.incarnation, deadline))

    def _timer(self, process: Process, incarnation: int, deadline: int) -> None:
        if process.incarnation == incarnation and process.wake_at == deadline:
            process.wake_at = None
            self._wake(process)

    def work(self, process: Process, event: Event | None) -> None:
        """Let an idle process begin to handle an event (None: the start of its incarnation). It is busy until `finish`."""
        instance = process.instance
        assert instance is not None
        clock = process.clock(self.now)
        process.is_busy = True
        effects, took = self.clock.charge(
            partial(instance.begin, clock, process.near) if event is None else partial(instance.handle, event, clock), event
        )
        self.at(self.now + max(took, 1) + process.drag_us, partial(self.finish, process, process.incarnation, effects, event))

    def finish(self, process: Process, incarnation: int, effects: list[Effect], event: Event | None) -> None:
        """A process has handled an event: perform the effects, and begin with the next event.

        If the process is frozen, this waits until it is thawed. If that incarnation is over, the effects are lost.
        """
        if process.incarnation != incarnation:
            return
        if process.is_frozen:
            process.held.append(partial(self.finish, process, incarnation, effects, event))
            return
        for effect in effects:
            self.perform(process, effect)
        if isinstance(event, Frames):
            reader = process.readers.get(event.log)
            if reader is not None:
                reader.is_polling = False
                self.poll_later(process, reader)
        process.is_busy = False
        if process.inbox:
            self.at(self.now, partial(self._wake, process))
        else:
            self._wake(process)

    # Effects

    def perform(self, process: Process, effect: Effect) -> None:
        """Perform one effect. The effects of an event are performed in the order of their list."""
        match effect:
            case Append(log, frame):
                self.append(log, frame)
            case Follow(log, after_id):
                process.readers[log] = reader = Reader(log, after_id)
                self._listeners.setdefault(log, {})[process.id] = None
                self.poll_later(process, reader)
            case Unfollow(log):
                process.readers.pop(log, None)
            case Watch(log):
                process.watched[log] = False
                self._listeners.setdefault(log, {})[process.id] = None
                self._tail_later(process, log)
            case Read():
                self._read_later(process, effect)
            case Send(to, message):
                self._send(process, to, Received(message))
            case Acknowledge(positions):
                self._acknowledge(process.id, positions)
            case Wake():
                pass  # embedded sources are never calm
            case StoreCheckpoint():
                self.at(self.now + self.conditions.upload_us, partial(self.stored, process, process.incarnation, effect))
            case Obey():
                raise AssertionError("the host is beside the instance")
            case StateChanged() | Reconciled():
                self.report(process.id, effect)
            case _:
                assert_never(effect)

    def report(self, who: InstanceId, what: StateChanged | Reconciled) -> None:
        """An instance reports: it is entered in the journal."""
        self.journal.append(Entry(self.now, who, what))

    def append(self, log: LogId, frame: Frame) -> None:
        """Log a frame, and schedule the reads of the processes that follow or watch the log."""
        self.logs.open(log).append(frame)
        self.on_append(log, frame, self.now)
        for who in self._listeners.get(log, ()):
            process = self.processes[who]
            reader = process.readers.get(log)
            if reader is not None:
                self.poll_later(process, reader)
            elif log in process.watched and isinstance(frame, Boundary):
                self._tail_later(process, log)

    def _send(self, process: Process, to: InstanceId, event: Event) -> None:
        there = self.processes[to].place
        if self.network.passes_messages(process.place, there):
            self.at(self.now + self.network.latency(process.place), partial(self.deliver, to, event))

    def stored(self, process: Process, incarnation: int, effect: StoreCheckpoint) -> None:
        """A checkpoint has reached the store, `upload_us` after its `perform`: store it, and drop the ones before it.

        If that incarnation is over, the upload was broken off and the checkpoint is lost.
        """
        if process.incarnation != incarnation:
            return
        assert effect.state is not None, "the host is beside the instance"
        self.store.put(
            Checkpoint(str(process.id), effect.number, effect.time, effect.needs, effect.next_ids, effect.inputs, effect.state)
        )
        process.lost_checkpoints = False
        self.store.drop(str(process.id), effect.number)
        self.deliver(process.id, CheckpointStored(effect.number))

    def _acknowledge(self, who: InstanceId, positions: tuple[tuple[str, int], ...]) -> None:
        self.processes[who].heard_at = self.now
        for key, first_id in positions:
            claims = self.claims[key]
            claims[who] = max(claims[who], first_id)
            valid = [needed for reader, needed in claims.items() if self.has_claim(reader)]
            if not valid:
                continue
            needed = min(valid)
            if needed > 0:
                stream, partition = key.rsplit("/", 1)
                for replica in self._replicas_of(stream):
                    self.logs.open(LogId(stream, replica, int(partition))).trim(needed - 1)

    def has_claim(self, who: InstanceId) -> bool:
        """R27: a reader that is silent for longer than `retention` loses its claim on the logs, until its next start."""
        process = self.processes[who]
        process.lost_claim = process.lost_claim or self.now - process.heard_at > self.plan.retention_us
        return not process.lost_claim

    def _replicas_of(self, stream: str) -> tuple[str, ...]:
        home = self._homes.get(stream)
        return self.plan.fragment(home).replicas if home else ("",)

    # Reading logs

    def _home(self, log: LogId) -> str:
        """The place that writes a log."""
        place = self._writers.get(log)
        if place is None:
            home = self._homes.get(log.stream)
            place = self._writers[log] = f"{home}.{log.replica}" if home else log.stream.split("@")[0]
        return place

    def poll_later(self, process: Process, reader: Reader) -> None:
        """Schedule a read at the offset of a reader, unless one is scheduled, the reader is cut off, or no frame is new.

        To be called whenever one of these conditions may have changed.
        """
        if reader.is_polling:
            return
        if not reader.is_first and reader.offset is not None and reader.offset >= self.logs.open(reader.log).end:
            return
        writer = self._home(reader.log)
        if not self.network.passes_data(writer, process.place):
            return
        reader.is_polling = True
        self.at(self.now + self.network.latency(writer), partial(self._poll, process, process.incarnation, reader))

    def _poll(self, process: Process, incarnation: int, reader: Reader) -> None:
        if process.incarnation != incarnation or process.readers.get(reader.log) is not reader:
            return
        if process.is_frozen:
            process.held.append(partial(self._poll, process, incarnation, reader))
            return
        if not self.network.passes_data(self._home(reader.log), process.place):
            reader.is_polling = False
            return
        log = self.logs.open(reader.log)
        try:
            if reader.offset is None:
                reader.offset = log.offset_after(reader.after_id)
            items = log.read(reader.offset, self.conditions.poll_frames, skip_revoked=True)
        except TrimmedError as trimmed:
            self._refuse(process, reader.log, _next_id(process, reader.log), trimmed)
            return
        reader.offset = items[-1][0] + 1 if items else log.end
        reader.is_first = False
        self.deliver(process.id, Frames(reader.log, tuple(items), log.end))

    def _tail_later(self, process: Process, log: LogId) -> None:
        writer = self._home(log)
        if process.watched[log] or not self.network.passes_data(writer, process.place):
            return
        process.watched[log] = True
        self.at(self.now + self.network.latency(writer), partial(self._tail, process, process.incarnation, log))

    def _tail(self, process: Process, incarnation: int, log: LogId) -> None:
        if process.incarnation != incarnation:
            return
        process.watched[log] = False
        if log in process.readers or not self.network.passes_data(self._home(log), process.place):
            return
        frame = self.logs.open(log).tail()
        if isinstance(frame, Boundary):
            self.deliver(process.id, Tail(log, frame))

    def _read_later(self, process: Process, read: Read) -> None:
        writer = self._home(read.log)
        if not self.network.passes_data(writer, process.place):
            process.waiting_reads.append(read)
            return
        self.at(self.now + self.network.latency(writer), partial(self._read, process, process.incarnation, read))

    def _read(self, process: Process, incarnation: int, read: Read) -> None:
        if process.incarnation != incarnation:
            return
        if process.is_frozen:
            process.held.append(partial(self._read, process, incarnation, read))
            return
        log = self.logs.open(read.log)
        items: list[tuple[int, Frame]] = []
        try:
            if log.next_stable_id > read.after_id + 1:
                start, most = log.offset_after(read.after_id), self.conditions.poll_frames
                items = log.read(start, most, read.max_bytes, skip_revoked=True)
        except TrimmedError as trimmed:
            self._refuse(process, read.log, read.after_id + 1, trimmed)
            return
        self.deliver(process.id, ReadDone(read.log, read.token, tuple(items)))

    def _refuse(self, process: Process, log: LogId, needed: int, trimmed: TrimmedError) -> None:
        """The log no longer has the stable rows from the id `needed` on.

        If the log of another replica has them, the process is notified and can switch. Otherwise the process is restarted.
        That is right only if it had lost its claim (R27); with a valid claim it is a breach (I7).
        """
        process.readers.pop(log, None)
        others = [self.logs.open(log._replace(replica=replica)) for replica in self._replicas_of(log.stream)]
        if any(holds(other, needed) for other in others):
            self.deliver(process.id, Unavailable(log))
            return
        if not process.lost_claim:
            self.breaches.append(f"{process.id} has a claim, but {trimmed}")
        self.crash(process.id)
        self.start(process.id)

    # Present state

    def states(self) -> dict[InstanceId, State | None]:
        """The consistency state of each instance; None for a dead one."""
        return {who: p.instance.state if p.instance else None for who, p in self.processes.items()}

    def egress(self) -> Process:
        """The process of the first replica of the egress."""
        return self.processes[InstanceId(EGRESS, "r0", 0)]


def _next_id(process: Process, log: LogId) -> int:
    """The next stable id of a log that a process needs."""
    assert process.instance is not None
    return next(entry.next_id for entry in process.instance.status().inputs if entry.key == log.key)
