"""Runs one instance: it takes events from readers and from the control topic, and performs the effects in order. It does so in
a thread of its own, or, while few rows come at a time, in one that it shares (services/hosting/host_loop.py).

Acknowledgements and checkpoints depend on frames that the instance has appended. Appends are pipelined, so both wait until
Kafka has those frames:

    1. frames are appended                 readers may see them from here on
    2. Kafka confirms them                 the next incarnation will find them
    3. the checkpoint goes to the store    it counts ids that the log holds
    4. inputs are acknowledged             no row that a restart may need can be trimmed
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from kafka.errors import KafkaError

from boreal.model.errors import CorruptError, OperatorError
from boreal.model.frames import Boundary, Data, Frame, LogId, State, Undo
from deployment.corrections import Correction, CorrectionHistory
from deployment.failure_signs import note_change
from deployment.layout import Layout
from deployment.operator_hosts import copy_owner
from formats.control_messages import ControlItem, acknowledge_item, message_item, wake_item
from logs.checkpoints import Checkpoint, CheckpointStore, StoreUnavailableError
from reconcile.engine import HostFailed
from reconcile.events import (
    Acknowledge,
    Append,
    CheckpointStored,
    Effect,
    Event,
    Follow,
    Frames,
    InstanceId,
    Near,
    Obey,
    Read,
    Received,
    Reconciled,
    Send,
    StateChanged,
    StoreCheckpoint,
    Tail,
    Threshold,
    Tick,
    Unavailable,
    Unfollow,
    Wake,
    Watch,
)
from reconcile.instance import Instance
from reconcile.orders import Order, Place
from services.hosting.connections import Connections
from services.hosting.failpoints import failpoint
from services.hosting.host_loop import HostLoop
from services.hosting.log_lines import facts
from services.hosting.process import EXIT_BEGIN_ANEW, now_us
from services.hosting.turns import Turns
from services.kafka.control import ControlPlane
from services.kafka.topics import control_topic
from services.storage.kafka_log import KafkaLogStore
from services.storage.log_reader import LogGap, LogPath, LogReaders, ReaderFailure, UnreadableRecord
from services.storage.near_logs import NearLogs

_logger = logging.getLogger("boreal.host")

UPLOAD_RETRY_S = 1.0
COPY_LOOK_S = 0.1

LONG_TURN_S = 0.02
ALONE_US = 10_000_000
"""An instance that has taken so much processor time in one turn does not share a thread for so long."""
FEW_ROWS = 1_024
BUSY_US = 2_000_000
"""Nor does one that gets more rows at a time, for so long."""
GATHER_US = 30_000
"""How long a boundary or a message may wait for others in a calm instance: longer than the reader of calm logs waits between
two fetches, so that what the sources write at one moment comes in one turn."""
REST_PARTS = 4
"""Where rows gather in its inputs, what comes to an instance may wait for one of so many parts of that time."""
TURN_EVENTS = 16
"""How many events an instance handles before the next one has its turn."""

WAITING_EVENTS = 10_000
"""If more events wait, because Kafka takes no frames, heartbeats and messages are dropped: they are soon out of date."""

InboxItem = Event | LogGap | UnreadableRecord | ReaderFailure

InboxEntry = tuple[int, InboxItem]
"""When an item arrived, in microseconds, and the item."""


class Outlet(Protocol):
    """The destination of an instance's frames. Appends return at once, and are confirmed in order."""

    def append(self, log: LogId, frame: Frame) -> None: ...

    @property
    def appended(self) -> int:
        """Frames appended so far."""
        ...

    @property
    def confirmed(self) -> int:
        """How many of these frames, counted from the first, Kafka has: a restart will find them."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether the next append may have to wait for Kafka."""
        ...


def build_host(
    instance: Instance,
    first_effects: Sequence[Effect],
    near: NearLogs,
    connections: Connections,
    layout: Layout,
    outlet: Outlet,
    control: ControlPlane,
    store: CheckpointStore | None,
    exit: Callable[[int], None],
) -> InstanceHost:
    """Make a host with a reader for each path to a log of the instance's inputs.

    `first_effects`: what the instance's `begin` returned. `near`: of the instance. `control`: of the query. The other
    parameters: see `InstanceHost`.
    """

    def path_to(log: LogId) -> LogPath:
        return connections.path_to(log, layout)

    def holder(log: LogId, first_id: int) -> bool:
        """True also if a site is out of reach, because its log may hold the rows."""
        with closing(KafkaLogStore(connections.clusters, layout)) as logs:
            try:
                return logs.is_held([log._replace(replica=r) for r in layout.replicas_of(log.stream)], first_id)
            except KafkaError:
                return True

    def wake(streams: Sequence[str]) -> None:
        for name in sorted({layout.sources_of(stream) for stream in streams}):
            theirs = [stream for stream in streams if layout.sources_of(stream) == name]
            control.send([wake_item(theirs)], control_topic(name))

    loop = connections.host_loop
    host = InstanceHost(instance, first_effects, outlet, control.send, store, holder, exit, wake, loop, connections.turns)
    logs = [log for logs in layout.input_logs(instance.me).values() for log in logs]
    interval_us = instance.plan.boundary_interval_us
    host.readers = LogReaders(path_to, logs, layout, host.deliver, interval_us, lambda: host.gather_us)
    near.tell(host.deliver)
    host.on_close = near.close
    return host


@dataclass
class InstanceStatus:
    """The state of an instance, and its history, for the process's status."""

    state: State | None = None
    """None before the instance begins, and after it ends."""
    since_us: int = 0
    """When it entered the state: microseconds since the epoch."""
    reconciliations: int = 0
    """How many corrections it has completed since the process began."""
    last_reconciliation_s: float | None = None
    """How long the last one took, in seconds; None before the first."""
    changes: list[tuple[str, float]] = field(default_factory=list)
    """Its last changes of state: the state, and when, in milliseconds since the epoch."""


@dataclass
class _PendingAction:
    """An action that waits until Kafka has confirmed enough of our frames."""

    after: int  # how many frames, counted from the first
    release: Callable[[], None]  # performs the action


@dataclass(eq=False)
class InstanceHost:
    """One instance, and the threads that run it: one for its events, and one for checkpoints if it has a store."""

    instance: Instance
    """The instance that runs here."""
    first_effects: Sequence[Effect]
    """What the instance's `begin` returned."""
    outlet: Outlet
    """Takes the frames that the instance appends."""
    send: Callable[[list[ControlItem]], None]
    """Publishes items on the control topic."""
    store: CheckpointStore | None
    """None: the instance makes no checkpoints."""
    holder: Callable[[LogId, int], bool]
    """holder(log, first_id): whether some replica's log still has the stable rows from an id on."""
    exit: Callable[[int], None]
    """Ends the process with an exit code."""
    wake: Callable[[Sequence[str]], None] = lambda streams: None
    """Asks the sources of these streams for boundaries at the usual pace."""
    loop: HostLoop | None = None
    """Runs it while few rows come at a time; None: it always has a thread of its own."""
    turns: Turns = field(default_factory=Turns)
    """Those of the process."""
    give_order: Callable[[Place, Order], None] = lambda place, order: None
    """Sends an order to the operator host in another process, if the instance has one."""
    on_change: Callable[[], None] = lambda: None
    """Called after each change of state, in the host's thread."""
    on_broken: Callable[[LogId, int, Exception], None] = lambda log, offset, error: None
    """on_broken(log, offset, error): called for each record that is not a frame, in the host's thread."""
    on_corrected: Callable[[Correction], None] = lambda correction: None
    """Called after each correction, in the host's thread."""
    on_close: Callable[[], None] = lambda: None
    """Called when it is closed."""
    on_failed: Callable[[str], None] = lambda problem: None
    """Called with what has failed, before the process is asked to end, in the host's thread."""
    status: InstanceStatus = field(default_factory=InstanceStatus)
    """Written by the host's thread, read by the thread that publishes the status."""
    inbox: queue.SimpleQueue[InboxEntry] = field(default_factory=lambda: queue.SimpleQueue())
    """Events that wait, in order of arrival."""

    readers: LogReaders = field(init=False)
    """Its inputs."""
    is_shared: bool = field(init=False, default=False)
    """Whether it shares a thread now."""
    _pending: deque[_PendingAction] = field(init=False, default_factory=deque)
    _first: InboxEntry | None = field(init=False, default=None)
    _items: list[ControlItem] = field(init=False, default_factory=list)
    _is_tentative: bool = field(init=False, default=False)
    _corrections: CorrectionHistory = field(init=False, default_factory=CorrectionHistory)
    _is_checkpoint_pending: bool = field(init=False, default=False)
    _uploads: queue.SimpleQueue[StoreCheckpoint | None] = field(init=False, default_factory=lambda: queue.SimpleQueue())
    _stopping: threading.Event = field(init=False, default_factory=lambda: threading.Event())
    _name: str = field(init=False)
    _thread: threading.Thread | None = field(init=False, default=None)
    _uploader: threading.Thread | None = field(init=False, default=None)
    _alone_until_us: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._name = f"{self.instance.plan.query}.{self.me}"

    @property
    def me(self) -> InstanceId:
        return self.instance.me

    @property
    def is_patient(self) -> bool:
        """Whether its turn may be a moment late: its readers have been told that it may be silent for longer."""
        return self.instance.is_calm

    @property
    def gather_us(self) -> int:
        """For how long what comes to it may wait for what comes to others, in microseconds: a part of the time for which rows
        gather in its inputs, as these have said."""
        return self.instance.rest_us // REST_PARTS

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing happens in it that somebody should hear of soon."""
        return self.instance.is_at_rest(now_us())

    def set_threshold(self, threshold: Threshold) -> None:
        """Let it answer within another X, if this is another one. May be called from any thread."""
        if self.instance.status().delay_threshold_us != threshold.delay_threshold_us:
            self.deliver(threshold)

    def start(self) -> None:
        self.run_alone()
        if self.store is not None:
            self._uploader = threading.Thread(target=self._upload, name=f"{self._name}-checkpoints", daemon=True)
            self._uploader.start()

    def deliver(self, event: InboxItem) -> None:
        """Queue an event. May be called from any thread."""
        if not isinstance(event, Tail | Received) or self.inbox.qsize() < WAITING_EVENTS:
            came_at = now_us()
            self.inbox.put((came_at, event))
            if self.is_shared and self.loop is not None:
                is_gathered = self.is_patient and _is_small(event)
                self.loop.wake(self, came_at + GATHER_US if is_gathered else came_at)

    def close(self) -> None:
        """Stop the threads after the work that they have begun, and its readers; waits up to 2 s for each thread."""
        self._stopping.set()
        self._uploads.put(None)
        self.inbox.put((now_us(), Tick()))
        if self.loop is not None:
            self.loop.leave(self)
        for thread in (self._thread, self._uploader):
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout=2)
        self.on_close()
        self.readers.close()

    # The loop

    def run_alone(self) -> None:
        """Run in a thread of its own, until it may share one."""
        self.is_shared = False
        if not self._stopping.is_set():
            self._thread = threading.Thread(target=lambda: self._guard(self._run), name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        first, self.first_effects = self.first_effects, ()
        self._perform_all(first)
        while not self._stopping.is_set():
            self._timed(self._turn)
            if self.loop is not None and self._may_share():
                # In this order: what comes from now on wakes it, and what came before is found in its first turn.
                self.is_shared = True
                self.loop.join(self)
                return

    def take_turn(self) -> int | None:
        """In the shared thread: handle a few events, if that can neither take long nor wait."""
        threading.current_thread().name = self._name  # log lines name it
        due = self._guard(lambda: self._timed(self._take_turn))
        return due if self._may_share() else None

    def _take_turn(self) -> int | None:
        if self._stopping.is_set() or not self._may_share():
            return None
        for _ in range(TURN_EVENTS):
            if self._first is None:
                with suppress(queue.Empty):
                    self._first = self.inbox.get_nowait()
            due = self.instance.next_deadline()
            if self._first is None and due > now_us():
                return due
            if self._first is not None and not _is_small(self._first[1]):
                self._stay_alone(BUSY_US)
                return None
            self._turn()
        return now_us()

    def _timed(self, work: Callable[[], int | None]) -> int | None:
        """What the work returns. If it takes long, the instance is to run alone: so will the next turns."""
        began = time.thread_time()
        result = work()
        if time.thread_time() - began > LONG_TURN_S:
            self._stay_alone(ALONE_US)
        return result

    def _stay_alone(self, for_us: int) -> None:
        self._alone_until_us = max(self._alone_until_us, now_us() + for_us)

    def _may_share(self) -> bool:
        """Whether its work can be done in the thread that instances share."""
        return self.instance.runs_here and now_us() >= self._alone_until_us and not self.outlet.may_wait

    def _guard(self, work: Callable[[], int | None]) -> int | None:
        """What the work returns; None if it fails, which ends this instance."""
        try:
            return work()
        except HostFailed as failure:
            _logger.error("%s restarts, because its operators failed or their state is lost:\n%s", self.me, failure)
            self.on_failed(operator_problem(str(failure)) or "the operators in Spark failed, or their state is lost")
            self.exit(EXIT_BEGIN_ANEW)
        except Exception as error:
            _logger.exception("%s failed", self.me)
            self.on_failed(str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}")
            self.exit(1)
        self._stopping.set()
        return None

    def _turn(self) -> None:
        """Handle the next event; if there is none, wait until the instance's deadline."""
        incoming = self._next()
        if isinstance(incoming, ReaderFailure):
            raise incoming.error
        event = self._translate(incoming)
        if event is None:
            return
        if not _is_small(incoming):
            self._stay_alone(BUSY_US)
        with self.turns.take():
            self._perform_all(self.instance.handle(event, now_us()))
        if isinstance(event, Frames):
            self.readers.of(event.log).taken(event.log)
        elif isinstance(event, Threshold):
            self.readers.watch_every(event.boundary_interval_us)

    def _next(self) -> InboxItem:
        """The next event for the instance: the oldest in the inbox, or a Tick that cannot wait for its turn."""
        if self._first is None:
            wait_us = self.instance.next_deadline() - now_us()
            try:
                self._first = self.inbox.get(timeout=wait_us / 1e6) if wait_us > 0 else self.inbox.get_nowait()
            except queue.Empty:
                return Tick()
        came_at, incoming = self._first
        if self.instance.is_starving(now_us()):
            return Tick(came_at)
        self._first = None
        return incoming

    def _translate(self, incoming: Event | LogGap | UnreadableRecord) -> Event | None:
        """Translate what a reader reports: rows that a log lacks mean another replica's log, or a restart (R27)."""
        match incoming:
            case LogGap(log, needed):
                if self.holder(log, needed):
                    return Unavailable(log)
                _logger.error("no log of %s holds id %d any more: restarting", log.key, needed)
                self.exit(EXIT_BEGIN_ANEW)
                return None
            case UnreadableRecord(log, offset, error):
                self.on_broken(log, offset, error)
                return Unavailable(log)
        return incoming

    # Effects

    def _perform_all(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._perform(effect)
        self._release()
        if self._items:
            items, self._items = self._items, []
            self.send(items)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Append(log, frame):
                failpoint("node.before_append")
                self.outlet.append(log, frame)
                failpoint("node.between_appends")
                self._log_tentative(frame)
            case Follow(log, after_id):
                _logger.info("%s reads %s of %s after id %d", self.me, log.key, log.replica or "the source", after_id)
                self.readers.of(log).follow(log, after_id)
            case Unfollow(log):
                self.readers.of(log).unfollow(log)
            case Watch(log):
                self.readers.of(log).watch(log)
            case Read(log):
                self.readers.of(log).read(effect)
            case Send(to, message):
                self._items.append(message_item(to, message))
            case Acknowledge(positions):
                self._defer(lambda: self._acknowledge(positions))
            case Wake(streams):
                self.wake(streams)
            case Obey(place, order):
                failpoint("node.before_order")
                self.give_order(place, order)
            case StoreCheckpoint():
                # One at a time, because each is a whole state, and one is made at every interval even while Kafka takes
                # nothing.
                if not self._is_checkpoint_pending:
                    self._is_checkpoint_pending = True
                    self._defer(lambda: self._start_upload(effect))
            case StateChanged(state):
                said = state.value if state else "dead"
                _logger.info("%s is %s", self.me, said, extra=facts(instance=str(self.me), state=said))
                self.status.state, self.status.since_us = state, now_us()
                self._corrections.enter(state, self.status.since_us)
                if state is not None:
                    note_change(self.status.changes, state.value, self.status.since_us / 1_000)
                self.on_change()
            case Reconciled(started, tuples, checkpoint_bytes):
                now = now_us()
                seconds = (now - started) / 1e6
                told = facts(instance=str(self.me), rows=tuples, seconds=seconds)
                _logger.info("%s has reconciled: %d input rows in %.3f s", self.me, tuples, seconds, extra=told)
                self.on_corrected(self._corrections.end(started, tuples, checkpoint_bytes, now))
                self.status.reconciliations += 1
                self.status.last_reconciliation_s = seconds
            case _:
                assert_never(effect)

    def _log_tentative(self, frame: Frame) -> None:
        """Log once, until the next UNDO, that the instance answers tentatively, and why."""
        if isinstance(frame, Boundary) and frame.tentative and not self._is_tentative:
            self._is_tentative = True
            held_s = self.instance.status().alpha_x_us / 1e6
            missing = f" for {', '.join(frame.missing)}" if frame.missing else ""
            told = facts(instance=str(self.me), held_s=held_s, missing=frame.missing, cause=frame.cause)
            _logger.info("%s answers tentatively after a wait of %.3f s%s", self.me, held_s, missing, extra=told)
            self._corrections.answer_tentatively(frame.missing, now_us())
        elif isinstance(frame, Undo):
            self._is_tentative = False

    def _defer(self, release: Callable[[], None]) -> None:
        self._pending.append(_PendingAction(self.outlet.appended, release))

    def _release(self) -> None:
        """Perform steps 3 and 4 of the module's header for all frames that have passed step 2."""
        while self._pending and self._pending[0].after <= self.outlet.confirmed:
            self._pending.popleft().release()

    def _start_upload(self, effect: StoreCheckpoint) -> None:
        self._is_checkpoint_pending = False
        self._uploads.put(effect)

    def _acknowledge(self, positions: tuple[tuple[str, int], ...]) -> None:
        failpoint("node.before_acknowledge")
        self._items.append(acknowledge_item(self.me, positions))

    # Checkpoints, written in a separate thread (R19)

    def _upload(self) -> None:
        try:
            while (effect := self._uploads.get()) is not None and not self._stopping.is_set():
                failpoint("node.before_checkpoint")
                if self._put(effect):
                    failpoint("node.after_checkpoint")
                    self.deliver(CheckpointStored(effect.number))
        except Exception:
            # Without checkpoints the inputs that they cover would never be acknowledged, and so never trimmed.
            _logger.exception("checkpoints of %s can no longer be stored", self.me)
            self.exit(1)

    def _put(self, effect: StoreCheckpoint) -> bool:
        """Store a checkpoint. Retries until the store takes it, or a newer one waits: then False."""
        assert self.store is not None
        while self._uploads.empty() and not self._stopping.is_set():
            try:
                state = effect.state if effect.state is not None else self._copy(effect.number)
                if state is None:
                    self._stopping.wait(COPY_LOOK_S)
                    continue
                self.store.put(
                    Checkpoint(str(self.me), effect.number, effect.time, effect.needs, effect.next_ids, effect.inputs, state)
                )
                return True
            except StoreUnavailableError as error:
                _logger.warning("checkpoint %d of %s waits for the store: %s", effect.number, self.me, error)
                self._stopping.wait(UPLOAD_RETRY_S)
        return False

    def _copy(self, number: int) -> bytes | None:
        """The copy of the state that the operator host in another process made under this number; None until it is stored."""
        assert self.store is not None
        try:
            return self.store.get(copy_owner(self.me), number).state
        except (KeyError, CorruptError):
            return None


def _is_small(item: InboxItem) -> bool:
    """Whether handling an item is a matter of a moment: it brings few rows or none, and asks for no look into a log."""
    if isinstance(item, Frames):
        return sum(frame.batch.num_rows for _, frame in item.items if isinstance(frame, Data)) <= FEW_ROWS
    return isinstance(item, Tail | Received | Near | Tick)


def operator_problem(text: str) -> str | None:
    """What an `OperatorError` says, in the traceback that a host in another process gave; None if there is none."""
    marker = f"{OperatorError.__name__}: "
    return next((line.partition(marker)[2] for line in reversed(text.splitlines()) if marker in line), None)
