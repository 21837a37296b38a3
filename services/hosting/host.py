"""Hosts one instance in a thread: events from its readers and from the control topic in, its effects out, in order.

What an instance says of its place (an acknowledgement, a checkpoint) rests on frames that it has appended. Appending is
pipelined, so both are held back until Kafka has those frames:

    1. frames are appended                 a reader may see them from here on
    2. Kafka confirms them                 our next life will find them
    3. the checkpoint goes to the store    it counts ids that the log holds
    4. inputs are acknowledged             nothing that we may still need can be trimmed
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from kafka.errors import KafkaError

from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Frame, LogId, State, Undo
from deployment.layout import Layout
from deployment.operator_hosts import copy_owner
from formats.control_messages import ControlItem, acknowledge_item, message_item
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
    Obey,
    Read,
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
from reconcile.orders import Order, Place
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_BEGIN_ANEW, now_us
from services.kafka.clusters import Cluster
from services.storage.kafka_log import KafkaLogStore
from services.storage.log_reader import LogGap, LogReader, ReaderFailure, UnreadableRecord

_logger = logging.getLogger("boreal.host")

UPLOAD_RETRY_S = 1.0
COPY_LOOK_S = 0.1

WAITING_EVENTS = 10_000
"""Where more wait, because Kafka takes no frames, signs of life and messages are forgotten: they are soon worth nothing."""

Incoming = Event | LogGap | UnreadableRecord | ReaderFailure

Waiting = tuple[int, Incoming]
"""What has come, and when, in microseconds."""


class Outlet(Protocol):
    """Where an instance's frames go. Appends return at once, and are confirmed in their order."""

    def append(self, log: LogId, frame: Frame) -> None: ...

    @property
    def appended(self) -> int:
        """Frames appended so far."""
        ...

    @property
    def confirmed(self) -> int:
        """Of these, how many are safe from the first on: a restart will find them."""
        ...


def host_of(
    instance: Instance,
    begun: Sequence[Effect],
    clusters: Mapping[str, Cluster],
    layout: Layout,
    outlet: Outlet,
    send: Callable[[list[ControlItem]], None],
    store: CheckpointStore | None,
    exit: Callable[[int], None],
) -> InstanceHost:
    """A host whose readers read the logs of the instance's inputs, at each site that has one."""

    def holder(log: LogId, first_id: int) -> bool:
        """What is out of reach may hold it."""
        with closing(KafkaLogStore(clusters, layout)) as logs:
            try:
                return logs.is_held([replace(log, replica=r) for r in layout.replicas_of(log.stream)], first_id)
            except KafkaError:
                return True

    host = InstanceHost(instance, begun, {}, layout.site_of, outlet, send, store, holder, exit)
    sites = {layout.site_of(log) for logs in layout.input_logs(instance.me).values() for log in logs}
    host.readers = {site: LogReader(clusters[site], layout, host.deliver) for site in sorted(sites)}
    return host


@dataclass
class Journal:
    """What an instance has told of itself, for its status."""

    state: State | None = None
    since_us: int = 0
    reconciliations: int = 0
    last_reconciliation_s: float | None = None


@dataclass
class _Held:
    """Something that waits until so many of our frames are confirmed."""

    after: int
    release: Callable[[], None]


@dataclass
class InstanceHost:
    """`begun`: what the instance's `begin` returned. `readers`: by site; `site_of` tells which of them reads a log. `send`
    says items on the control topic; `exit` ends the process with a code. `holder(log, first_id)`: whether some replica's
    log still has the stable rows from an id on. `on_broken` is told of records that are no frames. `give_order` sends
    orders to an operator host in another process, where the instance has one.
    """

    instance: Instance
    begun: Sequence[Effect]
    readers: Mapping[str, LogReader]
    site_of: Callable[[LogId], str]
    outlet: Outlet
    send: Callable[[list[ControlItem]], None]
    store: CheckpointStore | None
    holder: Callable[[LogId, int], bool]
    exit: Callable[[int], None]
    give_order: Callable[[Place, Order], None] = lambda place, order: None
    on_change: Callable[[], None] = lambda: None
    on_broken: Callable[[LogId, int, Exception], None] = lambda log, offset, error: None
    journal: Journal = field(default_factory=Journal)
    inbox: queue.SimpleQueue[Waiting] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._first: Waiting | None = None
        self._items: list[ControlItem] = []
        self._is_tentative = False
        self._is_checkpoint_held = False
        self._uploads: queue.SimpleQueue[StoreCheckpoint | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=str(self.me), daemon=True)]
        if self.store is not None:
            self._threads.append(threading.Thread(target=self._upload, name=f"{self.me}-checkpoints", daemon=True))

    @property
    def me(self) -> InstanceId:
        return self.instance.me

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def deliver(self, event: Incoming) -> None:
        """Hand over an event, from any thread."""
        if not isinstance(event, Tail | Received) or self.inbox.qsize() < WAITING_EVENTS:
            self.inbox.put((now_us(), event))

    def close(self) -> None:
        """Stop, after the work in hand."""
        self._stopping.set()
        self._uploads.put(None)
        self.inbox.put((now_us(), Tick()))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=2)

    # The loop

    def _run(self) -> None:
        try:
            self._perform_all(self.begun)
            while not self._stopping.is_set():
                self._turn()
        except HostFailed as failure:
            _logger.error("%s begins anew, for its operators failed or their state is lost:\n%s", self.me, failure)
            self.exit(EXIT_BEGIN_ANEW)
        except Exception:
            _logger.exception("%s cannot go on", self.me)
            self.exit(1)

    def _turn(self) -> None:
        """Take what has come; if nothing has, wait until the instance wants to be called."""
        incoming = self._next()
        if isinstance(incoming, ReaderFailure):
            raise incoming.error
        event = self._judged(incoming)
        if event is None:
            return
        self._perform_all(self.instance.handle(event, now_us()))
        if isinstance(event, Frames):
            self._reader(event.log).taken(event.log)

    def _next(self) -> Incoming:
        """What the instance is to be told next: the first of what has come, but for a Tick that cannot wait for its turn."""
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

    def _judged(self, incoming: Event | LogGap | UnreadableRecord) -> Event | None:
        """What a reader's refusal means for the instance: another replica's log, or a new life (R27)."""
        match incoming:
            case LogGap(log, needed):
                if self.holder(log, needed):
                    return Unavailable(log)
                _logger.error("no log of %s holds id %d any more: beginning anew", log.key, needed)
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
                self._tell_of_tentative(frame)
            case Follow(log, after_id):
                _logger.info("%s reads %s of %s after id %d", self.me, log.key, log.replica or "the source", after_id)
                self._reader(log).follow(log, after_id)
            case Unfollow(log):
                self._reader(log).unfollow(log)
            case Watch(log):
                self._reader(log).watch(log)
            case Read(log):
                self._reader(log).read(effect)
            case Send(to, message):
                self._items.append(message_item(to, message))
            case Acknowledge(positions):
                self._hold(lambda: self._acknowledge(positions))
            case Obey(place, order):
                failpoint("node.before_order")
                self.give_order(place, order)
            case StoreCheckpoint():
                # One at a time, for each is a whole state: while Kafka takes nothing, a new one is made at every interval.
                if not self._is_checkpoint_held:
                    self._is_checkpoint_held = True
                    self._hold(lambda: self._hand_up(effect))
            case StateChanged(state):
                _logger.info("%s is %s", self.me, state.value if state else "dead")
                self.journal.state, self.journal.since_us = state, now_us()
                self.on_change()
            case Reconciled(started, tuples, _):
                seconds = (now_us() - started) / 1e6
                _logger.info("%s has reconciled: %d input rows in %.3f s", self.me, tuples, seconds)
                self.journal.reconciliations += 1
                self.journal.last_reconciliation_s = seconds

    def _tell_of_tentative(self, frame: Frame) -> None:
        """Say once, until an UNDO, that and why we answer tentatively."""
        if isinstance(frame, Boundary) and frame.tentative and not self._is_tentative:
            self._is_tentative = True
            held_s = self.instance.sunion.alpha_x_us / 1e6
            missing = f" for {', '.join(frame.missing)}" if frame.missing else ""
            _logger.info("%s answers tentatively, having waited %.3f s%s", self.me, held_s, missing)
        elif isinstance(frame, Undo):
            self._is_tentative = False

    def _reader(self, log: LogId) -> LogReader:
        return self.readers[self.site_of(log)]

    def _hold(self, release: Callable[[], None]) -> None:
        self._held.append(_Held(self.outlet.appended, release))

    def _release(self) -> None:
        """Steps 3 and 4 of the module's header, as far as step 2 has come."""
        while self._held and self._held[0].after <= self.outlet.confirmed:
            self._held.popleft().release()

    def _hand_up(self, effect: StoreCheckpoint) -> None:
        self._is_checkpoint_held = False
        self._uploads.put(effect)

    def _acknowledge(self, positions: tuple[tuple[str, int], ...]) -> None:
        failpoint("node.before_acknowledge")
        self._items.append(acknowledge_item(self.me, positions))

    # Checkpoints, behind (R19)

    def _upload(self) -> None:
        try:
            while (effect := self._uploads.get()) is not None and not self._stopping.is_set():
                failpoint("node.before_checkpoint")
                if self._put(effect):
                    failpoint("node.after_checkpoint")
                    self.deliver(CheckpointStored(effect.number))
        except Exception:
            # Without checkpoints nothing that they stand for is ever let go.
            _logger.exception("checkpoints of %s cannot go on", self.me)
            self.exit(1)

    def _put(self, effect: StoreCheckpoint) -> bool:
        """Try until the store takes it, or a newer one waits."""
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
        """The copy of the state that our host elsewhere has made under this number; None while it has not arrived."""
        assert self.store is not None
        try:
            return self.store.get(copy_owner(self.me), number).state
        except (KeyError, CorruptError):
            return None
