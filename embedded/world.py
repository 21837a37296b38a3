"""The world of an embedded run: processes, logs and links, driven as discrete events.

The same loop serves three clocks: the simulator's (time jumps, work is charged by a model), `--clock skip` (time jumps,
work is charged what it really took) and `--clock real` (time passes). Each instance is a machine of its own: it is busy
while it works, and what arrives meanwhile waits.
"""

from __future__ import annotations

import heapq
import time as wall
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

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
    Watch,
)
from reconcile.instance import Instance
from reconcile.limits import PRODUCTION, Limits
from reconcile.recovery import Restart, Saved

POLL_FRAMES = 256
UPLOAD_US = 5_000


class Clock(Protocol):
    """Run time, in microseconds, and what work costs."""

    def wait_until(self, at: int) -> int:
        """Let run time reach `at`; returns the time that it is then."""
        ...

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        """Do a piece of work; returns its effects, and how long the machine is busy with it."""
        ...


class SkipClock:
    """Idle time is jumped over, work takes what it really takes: the time that passed, less what others had the core for."""

    def wait_until(self, at: int) -> int:
        return at

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        started, worked = wall.perf_counter_ns(), wall.process_time_ns()
        effects = work()
        # Threads of a library make the processor time the longer of the two, other programs the time that passed.
        took = min(wall.perf_counter_ns() - started, wall.process_time_ns() - worked)
        return effects, took // 1_000


class ModelClock:
    """Time is all virtual: a run repeats exactly. copy_us: what each copy of a state takes, beside what its bytes do."""

    def __init__(self, copy_us: int = 0) -> None:
        self.copy_us = copy_us

    def wait_until(self, at: int) -> int:
        return at

    def charge(self, work: Callable[[], list[Effect]], event: Event | None) -> tuple[list[Effect], int]:
        effects = work()
        rows = copies = copied = 0
        for effect in effects:
            if isinstance(effect, Append):
                rows += effect.frame.batch.num_rows if isinstance(effect.frame, Data) else 0
            elif isinstance(effect, StoreCheckpoint) and effect.state is not None:
                copies += 1
                copied += len(effect.state)
        if isinstance(event, Frames):
            rows += sum(frame.batch.num_rows for _, frame in event.items if isinstance(frame, Data))
        return effects, 30 + rows // 10 + copied // 500 + copies * self.copy_us


class RealClock:
    """Time passes as on the wall."""

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
class _Reader:
    """One followed or watched log of a process: `offset` is None until the place to begin has been looked up."""

    log: LogId
    after_id: int
    offset: int | None = None
    is_polling: bool = False
    is_first: bool = True


def _right(now: int) -> int:
    return now


@dataclass(slots=True)
class Process:
    """An instance on a machine of its own. clock: what it takes for the time, by run time; inbox: what has come, and when.
    drag_us: how much longer than it should each piece of its work takes."""

    id: InstanceId
    instance: Instance | None = None
    readers: dict[LogId, _Reader] = field(default_factory=dict)
    watched: dict[LogId, bool] = field(default_factory=dict)
    waiting_reads: list[Read] = field(default_factory=list)
    inbox: deque[tuple[int, Event]] = field(default_factory=deque)
    is_busy: bool = False
    is_frozen: bool = False
    wake_at: int | None = None
    life: int = 0
    clock: Callable[[int], int] = _right
    drag_us: int = 0
    lost_checkpoints: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    heard_at: int = 0
    lost_claim: bool = False

    @property
    def place(self) -> str:
        return f"{self.id.fragment}.{self.id.replica}"

    def forget(self) -> None:
        """A life is over: what it read, awaited and was about to do goes with it."""
        self.life += 1
        self.readers.clear()
        self.watched.clear()
        self.waiting_reads.clear()
        self.held.clear()
        self.inbox.clear()
        self.is_busy, self.is_frozen, self.wake_at = False, False, None


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the journal: what an instance reported, and when."""

    at: int
    who: InstanceId
    what: StateChanged | Reconciled


class World:
    """All processes of one query. `on_append(log, frame, now)` is told of every frame that is logged. limits: of every
    instance; poll_frames: how many frames a reader is given at a time; upload_us: how long a checkpoint is on its way to the
    store."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        logs: LogStore,
        store: CheckpointStore,
        on_append: Callable[[LogId, Frame, int], None],
        limits: Limits = PRODUCTION,
        poll_frames: int = POLL_FRAMES,
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.poll_frames = poll_frames
        self.clock = clock
        self.logs = logs
        self.store = store
        self.on_append = on_append
        self.poll_frames = POLL_FRAMES
        self.upload_us = UPLOAD_US
        self.now = 0
        self.network = Network()
        self.journal: list[Entry] = []
        self.processes: dict[InstanceId, Process] = {}
        self.claims: dict[str, dict[InstanceId, int]] = {}
        self.breaches: list[str] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._homes = {edge.name: fragment.name for fragment in plan.fragments for edge in fragment.outputs}
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

    def at(self, when: int, action: Callable[[], None]) -> None:
        """Do something at a time of the run clock; things of one time happen in the order in which they were asked for."""
        self._sequence += 1
        heapq.heappush(self._events, (max(when, self.now), self._sequence, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until it is over."""
        while self._events and not is_over():
            when, _, action = heapq.heappop(self._events)
            self.now = max(self.clock.wait_until(when), self.now)
            action()

    # Processes

    def start(self, who: InstanceId) -> None:
        """Begin a life of an instance: from what its own logs and the checkpoint store hold."""
        process = self.processes[who]
        for restart in self._restarts(process):
            process.forget()
            process.instance = Instance(self.plan_of(who), who, restart, self.limits)
            process.heard_at, process.lost_claim = self.now, False
            try:
                self._work(process, None)
            except CorruptError:
                continue  # no checkpoint of this fragment's: the next place is as good, but for more to read again
            return
        process.forget()
        process.instance = None
        self.breaches.append(f"{who} cannot restart: its inputs are trimmed, and no partner can help")

    def plan_of(self, who: InstanceId) -> Plan:
        """The plan as an instance sees it."""
        return self.plan

    def crash(self, who: InstanceId, losing_checkpoint: bool = False) -> None:
        """The process dies at once; what it had logged and stored stays, but for lost checkpoints."""
        process = self.processes[who]
        process.forget()
        process.instance = None
        process.lost_checkpoints = process.lost_checkpoints or losing_checkpoint
        self.journal.append(Entry(self.now, who, StateChanged(None)))
        for readers in self._listeners.values():
            readers.pop(who, None)

    def freeze(self, who: InstanceId) -> None:
        self.processes[who].is_frozen = True

    def thaw(self, who: InstanceId) -> None:
        process = self.processes[who]
        if process.is_frozen:
            process.is_frozen = False
            held, process.held = process.held, []
            for action in held:
                action()
            self._wake(process)

    def deliver(self, who: InstanceId, event: Event) -> None:
        """Put an event into a process's inbox; a dead one has none."""
        process = self.processes[who]
        if process.instance is not None:
            process.inbox.append((self.now, event))
            self._wake(process)

    def links_changed(self) -> None:
        """After a cut or a heal: whoever reads tries again."""
        for process in self.processes.values():
            for reader in list(process.readers.values()):
                self._poll_later(process, reader)
            for log in list(process.watched):
                self._tail_later(process, log)
            waiting, process.waiting_reads = process.waiting_reads, []
            for read in waiting:
                self._read_later(process, read)

    def _restarts(self, process: Process) -> Iterator[Restart]:
        """Where a new life may begin, best first: by the own logs and checkpoint, else by a partner's (R26, R27)."""
        who = process.id
        fragment = self.plan_of(who).fragment(who.fragment)
        family = [who, *(replace(who, replica=replica) for replica in fragment.replicas if replica != who.replica)]
        lives = [(self._logs_of(member), self._saved(member)) for member in family]
        inputs = {
            f"{edge.name}/{edge.partition(producer, who.shard)}": [
                LogId(edge.name, replica, edge.partition(producer, who.shard)) for replica in self._replicas_of(edge.name)
            ]
            for edge in fragment.edges
            for producer in range(edge.producers)
        }
        return restarts(who, lives, inputs, self.logs.open)

    def _logs_of(self, who: InstanceId) -> list[LogId]:
        return [
            LogId(edge.name, who.replica, edge.partition(who.shard, reader))
            for edge in self.plan.fragment(who.fragment).outputs
            for reader in range(edge.partitions)
        ]

    def _saved(self, who: InstanceId) -> Saved | None:
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
            self._work(process, event)
            return
        deadline = self.now + process.instance.next_deadline() - process.clock(self.now)
        if deadline <= self.now:
            self._work(process, Tick())
        elif process.wake_at is None or deadline < process.wake_at or process.wake_at <= self.now:
            process.wake_at = deadline
            life = process.life
            self.at(deadline, lambda: self._timer(process, life, deadline))

    def _timer(self, process: Process, life: int, deadline: int) -> None:
        if process.life == life and process.wake_at == deadline:
            process.wake_at = None
            self._wake(process)

    def _work(self, process: Process, event: Event | None) -> None:
        instance = process.instance
        assert instance is not None
        clock = process.clock(self.now)
        process.is_busy = True
        effects, took = self.clock.charge(
            (lambda: instance.begin(clock)) if event is None else (lambda: instance.handle(event, clock)), event
        )
        life = process.life
        self.at(self.now + max(took, 1) + process.drag_us, lambda: self._finish(process, life, effects, event))

    def _finish(self, process: Process, life: int, effects: list[Effect], event: Event | None) -> None:
        if process.life != life:
            return
        if process.is_frozen:
            process.held.append(lambda: self._finish(process, life, effects, event))
            return
        for effect in effects:
            self._perform(process, effect)
        if isinstance(event, Frames):
            reader = process.readers.get(event.log)
            if reader is not None:
                reader.is_polling = False
                self._poll_later(process, reader)
        process.is_busy = False
        if process.inbox:
            self.at(self.now, lambda: self._wake(process))
        else:
            self._wake(process)

    # Effects

    def _perform(self, process: Process, effect: Effect) -> None:
        match effect:
            case Append(log, frame):
                self.append(log, frame)
            case Follow(log, after_id):
                process.readers[log] = reader = _Reader(log, after_id)
                self._listeners.setdefault(log, {})[process.id] = None
                self._poll_later(process, reader)
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
            case StoreCheckpoint():
                life = process.life
                self.at(self.now + self.upload_us, lambda: self._stored(process, life, effect))
            case StateChanged() | Reconciled():
                self.journal.append(Entry(self.now, process.id, effect))

    def append(self, log: LogId, frame: Frame) -> None:
        """Log a frame, and let its readers know."""
        self.logs.open(log).append(frame)
        self.on_append(log, frame, self.now)
        for who in self._listeners.get(log, ()):
            process = self.processes[who]
            reader = process.readers.get(log)
            if reader is not None:
                self._poll_later(process, reader)
            elif log in process.watched and isinstance(frame, Boundary):
                self._tail_later(process, log)

    def _send(self, process: Process, to: InstanceId, event: Event) -> None:
        there = self.processes[to].place
        if self.network.passes_messages(process.place, there):
            self.at(self.now + self.network.latency(process.place), lambda: self.deliver(to, event))

    def _stored(self, process: Process, life: int, effect: StoreCheckpoint) -> None:
        if process.life != life:
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
        """R27: a reader silent for longer than `retention` loses its claim on the logs, until it begins anew."""
        process = self.processes[who]
        process.lost_claim = process.lost_claim or self.now - process.heard_at > self.plan.retention_us
        return not process.lost_claim

    def _replicas_of(self, stream: str) -> tuple[str, ...]:
        home = self._homes.get(stream)
        return self.plan.fragment(home).replicas if home else ("",)

    # Reading logs

    def _home(self, log: LogId) -> str:
        home = self._homes.get(log.stream)
        return f"{home}.{log.replica}" if home else log.stream.split("@")[0]

    def _poll_later(self, process: Process, reader: _Reader) -> None:
        if reader.is_polling:
            return
        writer = self._home(reader.log)
        if not self.network.passes_data(writer, process.place):
            return
        if not reader.is_first and reader.offset is not None and reader.offset >= self.logs.open(reader.log).end:
            return
        reader.is_polling = True
        life = process.life
        self.at(self.now + self.network.latency(writer), lambda: self._poll(process, life, reader))

    def _poll(self, process: Process, life: int, reader: _Reader) -> None:
        if process.life != life or process.readers.get(reader.log) is not reader:
            return
        if process.is_frozen:
            process.held.append(lambda: self._poll(process, life, reader))
            return
        if not self.network.passes_data(self._home(reader.log), process.place):
            reader.is_polling = False
            return
        log = self.logs.open(reader.log)
        try:
            if reader.offset is None:
                reader.offset = log.offset_after(reader.after_id)
            items = log.read(reader.offset, self.poll_frames, skip_revoked=True)
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
        life = process.life
        self.at(self.now + self.network.latency(writer), lambda: self._tail(process, life, log))

    def _tail(self, process: Process, life: int, log: LogId) -> None:
        if process.life != life:
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
        life = process.life
        self.at(self.now + self.network.latency(writer), lambda: self._read(process, life, read))

    def _read(self, process: Process, life: int, read: Read) -> None:
        if process.life != life:
            return
        if process.is_frozen:
            process.held.append(lambda: self._read(process, life, read))
            return
        log = self.logs.open(read.log)
        items: list[tuple[int, Frame]] = []
        try:
            if log.next_stable_id > read.after_id + 1:
                items = log.read(log.offset_after(read.after_id), self.poll_frames, read.max_bytes, skip_revoked=True)
        except TrimmedError as trimmed:
            self._refuse(process, read.log, read.after_id + 1, trimmed)
            return
        self.deliver(process.id, ReadDone(read.log, read.token, tuple(items)))

    def _refuse(self, process: Process, log: LogId, needed: int, trimmed: TrimmedError) -> None:
        """The log lacks the stable rows from `needed` on. If no other has them, a reader that had lost its claim begins
        anew."""
        process.readers.pop(log, None)
        others = [self.logs.open(replace(log, replica=replica)) for replica in self._replicas_of(log.stream)]
        if any(holds(other, needed) for other in others):
            self.deliver(process.id, Unavailable(log))
            return
        if not process.lost_claim:
            self.breaches.append(f"{process.id} has a claim, but {trimmed}")
        self.crash(process.id)
        self.start(process.id)

    # What is so

    def states(self) -> dict[InstanceId, State | None]:
        """Each instance's state; None for a dead one."""
        return {who: p.instance.state if p.instance else None for who, p in self.processes.items()}

    def egress(self) -> Process:
        return self.processes[InstanceId(EGRESS, "r0", 0)]


def _next_id(process: Process, log: LogId) -> int:
    """The stable id that a process needs next of a log."""
    assert process.instance is not None
    return next(link.port.tape.next_id for link in process.instance.links if link.port.key == log.key)
