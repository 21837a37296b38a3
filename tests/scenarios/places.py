"""Those that tell: a stream's log, an instance in all its lives, and the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from boreal.model.frames import Boundary, Data, Frame, LogId, RecDone, State, Undo
from boreal.query.plan import Plan
from embedded.world import Process
from formats.changelog import Changelog, RowRecords
from reconcile import orders
from reconcile.claims import CHECKPOINTS_OF_A_LIFE
from reconcile.events import (
    Append,
    CheckpointStored,
    Effect,
    Event,
    Follow,
    InstanceId,
    LeaseDenial,
    LeaseEnd,
    LeaseGrant,
    LeaseRequest,
    Message,
    Reconciled,
    Send,
    StateChanged,
    Unfollow,
)
from reconcile.host import Host
from reconcile.instance import Instance
from reconcile.orders import Answer, Order
from sunion.port import EARLY
from sunion.steps import Step
from sunion.tape import BEGINNING
from tests.scenarios.telling import Story, rows_of, seconds


class Source:
    """A stream's log: what a boundary comes after is told with it."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._rows = 0

    def note(self, log: LogId, frame: Frame, now: int) -> None:
        match frame:
            case Data():
                self._rows += frame.batch.num_rows
            case Boundary():
                words = "logs {rows}, and a boundary at {upto}" if self._rows else "logs a boundary at {upto}, and no rows"
                self._story.tell(now, log.stream, words, rows=self._rows, upto=frame.time)
                self._rows = 0
            case _:
                pass


class OverheardHost(Host):
    """An operator host that tells of each order before it obeys."""

    def __init__(self, host: Host, overhear: Callable[[Order], None]) -> None:
        super().__init__(host.graph, host.mode)
        self._overhear = overhear

    def obey(self, order: Order) -> Answer:
        self._overhear(order)
        return super().obey(order)


class Place:
    """One instance, life after life. now: the run clock."""

    def __init__(self, story: Story, who: InstanceId, now: Callable[[], int]) -> None:
        self._story, self._who, self._now = story, who, now
        self._name = f"{who.fragment}.{who.replica}"
        self._silent: tuple[str, ...] = ()
        self._state: State | None = None
        self._reads: dict[LogId, str] = {}

    def _tell(self, words: str, rows: int = 0, upto: int = BEGINNING, item: str = "") -> None:
        self._story.tell(self._now(), self._name, words, rows, upto, item)

    def introduce(self) -> None:
        """Which replicas it reads when the story begins."""
        for log, name in self._reads.items():
            if log.replica:
                self._tell("reads {items}", item=name)

    # Events

    def note_work(self, process: Process, event: Event | None) -> None:
        instance = process.instance
        assert instance is not None
        if event is None:
            self._begin(instance)
        self._look_at_inputs(instance)
        if isinstance(event, CheckpointStored):
            self._tell(f"{_checkpoint(event.number)} is in the store")

    def _begin(self, instance: Instance) -> None:
        self._silent, self._state = (), None
        self._reads.clear()
        host = instance.engine.host
        assert host is not None, "operators are beside their instance"
        instance.engine.host = OverheardHost(host, lambda order: self._note_order(instance, order))
        restart = instance.restart
        if restart.incarnation == 1:
            return
        self._tell(f"begins again: incarnation {restart.incarnation}")
        if restart.checkpoint is not None:
            owner, number = restart.checkpoint
            checkpoint = f"{_checkpoint(number)} of {owner.rpartition('.')[0]}"
            self._tell(f"takes the state at {seconds(restart.position)} from {checkpoint}")
        elif restart.position > BEGINNING:
            muted = f"muted up to {seconds(restart.muted_until)}"
            self._tell(f"finds an anchor in its log: rows from {seconds(restart.position)} on are handed on, {muted}")

    def _look_at_inputs(self, instance: Instance) -> None:
        silent = tuple(link.port.name for link in instance.links if link.port.silent)
        for name in silent:
            if name not in self._silent:
                self._tell(f"an input is silent: {name}")
        for name in self._silent:
            if name not in silent:
                self._tell(f"hears {name} again")
        self._silent = silent

    # Orders to the operator host

    def _note_order(self, instance: Instance, order: Order) -> None:
        self._look_at_inputs(instance)
        sunion = instance.sunion
        mark = max(sunion.base.position, sunion.muted_until)
        match order:
            case Step():
                self._tell_step(order, sunion.redoing and not order.tentative)
            case orders.SetMark(number, is_early):
                copy = f", with a copy of its state: {_checkpoint(number)}" if number else ""
                self._tell(f"MARK at {seconds(mark)}{', for an early answer' if is_early else ''}{copy}")
            case orders.Copy(number):
                name = f": {_checkpoint(number)}" if number else ", in memory"
                self._tell(f"copies its state at {seconds(mark)}{name}")
            case orders.RollBack(keep_live):
                beside = ", keeping the live branch beside" if keep_live else ""
                self._tell(f"ROLLBACK to the mark at {seconds(mark)}{beside}")
            case orders.DropLive():
                self._tell("gives up the live branch")
            case _:
                pass

    def _tell_step(self, step: Step, is_again: bool) -> None:
        if step.muted:
            kind = "muted"
        elif not step.tentative:
            kind = "stable"
        elif step.missing:
            kind = f"tentative, without {' and '.join(step.missing)}"
        else:
            kind = "tentative, early" if step.cause == EARLY else "tentative, with all inputs"
        rows = sum(batch.num_rows for batch in step.batches.values())
        words = f"hands on {{rows}}{' again' if is_again else ''} up to {{upto}}, {kind}"
        self._tell(words, rows=rows, upto=step.upto)

    # Effects

    def note_effect(self, process: Process, effect: Effect) -> None:
        instance = process.instance
        assert instance is not None
        self._look_at_inputs(instance)
        match effect:
            case StateChanged(state) if state is not None:
                self._tell_state(state, instance.status().alpha_x_us)
            case Follow(log, after_id):
                self._reads[log] = _log(instance, log)
                self._tell("reads {items}", item=f"{_log(instance, log)} from id {after_id + 1} on")
            case Unfollow(log):
                self._reads.pop(log, None)
                self._tell("leaves {items}", item=_log(instance, log))
            case Send(to, message):
                self._tell_message(f"{to.fragment}.{to.replica}", message)
            case Reconciled(started, tuples):
                self._tell(f"the correction that began at {seconds(started)} s is complete: {rows_of(tuples)} handed on again")
            case Append(_, Undo(last_id=last_id)):
                self._tell(f"writes UNDO to stable id {last_id}")
            case Append(_, RecDone()):
                self._tell("writes REC_DONE")
            case _:
                pass

    def _tell_state(self, state: State, alpha_x_us: int) -> None:
        before, self._state = self._state, state
        if before is State.STABLE and state is State.UP_FAILURE:
            self._tell(f"State: STABLE -> UP_FAILURE; alpha*X is {seconds(alpha_x_us)} s")
        elif before is not None:
            self._tell(f"State: {before.value} -> {state.value}")
        elif state is not State.STABLE:
            self._tell(f"State: {state.value}")

    def _tell_message(self, to: str, message: Message) -> None:
        match message:
            case LeaseRequest():
                self._tell(f"asks {to} to stay live")
            case LeaseGrant():
                self._tell(f"promises {to} to stay live")
            case LeaseDenial():
                self._tell(f"cannot promise {to} to stay live")
            case LeaseEnd():
                self._tell(f"releases {to} from its promise")
            case _:
                pass


def _checkpoint(number: int) -> str:
    """A checkpoint by the incarnation that made it, and which of its checkpoints it is."""
    life, place = divmod(number, CHECKPOINTS_OF_A_LIFE)
    return f"checkpoint {life}.{place}"


def _log(instance: Instance, log: LogId) -> str:
    """A log by its stream, and its writer where that has replicas."""
    if not log.replica:
        return log.stream
    link = instance.by_log[log]
    writer = next(who for who in link.producers if who.replica == log.replica)
    return f"{log.stream} of {writer.fragment}.{writer.replica}"


class Client:
    """What it was given, window by window."""

    def __init__(self, plan: Plan, story: Story) -> None:
        self._changelog = Changelog(plan.query, plan.output.schema, (), plan.bucket_us)
        self._story, self._threshold_us = story, plan.delay_threshold_us
        self._history: dict[str, list[str]] = {}
        self._held: list[str] = []
        self._longest_us = 0
        self.stable: list[str] = []

    def take(self, frame: Frame, now: int) -> None:
        before = self._changelog.place
        given = self._changelog.take(frame, now)
        if isinstance(given, RowRecords):
            self._take_rows(given, now)
        elif given is not None and given.kind == "undo":
            last_id, revoked = before.next_stable_id - 1, rows_of(before.outstanding)
            self._story.tell(now, "client", f"UNDO to stable id {last_id}: {revoked} revoked")
            for window in self._held:
                self._history[window][-1] += ", undone"
            self._held.clear()
        elif given is not None and given.kind == "rec_done":
            self._story.tell(now, "client", "REC_DONE")

    def _take_rows(self, given: RowRecords, now: int) -> None:
        self._longest_us = max(self._longest_us, *given.delays_us.tolist(), 0)
        kind = "tentative" if given.frame.tentative else "stable"
        for row in given.frame.batch.to_pylist():
            window, values = f"[{_half(row['window_start'])}, {_half(row['window_end'])})", f"n={row['n']}"
            self._story.tell(now, "client", "gets {items}, " + kind, item=f"{window} {values}")
            self._history.setdefault(window, []).append(f"{values} {kind}")
            if given.frame.tentative:
                self._held.append(window)
            else:
                self.stable.append(f"{window} {values}")

    def view(self) -> Iterator[str]:
        """What it has in the end, and how it came to that."""
        place = self._changelog.place
        yield "What the client was given of each window:"
        for window, history in self._history.items():
            yield f"  {window}  {'; '.join(history)}"
        undone = f"{place.n_tentative} tentative ones, of which {place.n_undone} were undone"
        yield f"{place.n_stable} stable rows, and {undone if place.n_tentative else 'no other'}."
        yield f"The longest delay of a new row was {seconds(self._longest_us)} s; X is {seconds(self._threshold_us)} s."


def _half(time: int) -> str:
    """A window's edge: windows are of half a second."""
    return f"{time / 1e6:.1f}"
