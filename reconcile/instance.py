"""One instance: SUnion, operator host and SOutput under the consistency machine, as one pure object.

`handle(event, now)` returns effects, which the driver performs in order. `next_deadline()` is the time of the next Tick. One
call does a bounded amount of work; if work is left, the next deadline is now. Clocks, sockets and logs belong to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Origin, RecDone, Start, State, Undo
from boreal.query.plan import CALM_AFTER_PAUSES, EGRESS, MOST_LOADED, Plan, pause_to_say, tick_after
from boreal.query.spec import Hold, Mode
from operators.graph import FragmentGraph
from reconcile import orders
from reconcile.claims import Claims
from reconcile.consequences import Consequence, EmitRows, EndCorrection, StoreCopy, UndoTentative
from reconcile.consistency import Facts, check_transition, state_of
from reconcile.engine import Engine, least_threshold_us
from reconcile.events import (
    Acknowledge,
    Answered,
    CheckpointStored,
    Effect,
    Event,
    Frames,
    Heartbeat,
    InstanceId,
    Near,
    PathAfter,
    ReadDone,
    Received,
    Reconciled,
    Send,
    StateChanged,
    Tail,
    Threshold,
    Tick,
    Unavailable,
    Unfollow,
    Wake,
)
from reconcile.host import Host
from reconcile.limits import PRODUCTION, Limits
from reconcile.links import Link, links_of, merges_of
from reconcile.orders import Answer
from reconcile.recovery import Restart
from reconcile.rereading import Rereading
from reconcile.soutput import SOutput
from reconcile.stagger import CALM_BEATS, HEARTBEATS_TO_DEATH, QUIET_TIMES, Permission, Stagger
from reconcile.status import Status
from reconcile.strategy import Strategy
from reconcile.upstream import Candidate
from sunion.port import Port
from sunion.steps import Item, Mark, Redone, Step
from sunion.sunion import Heal, Settings, SUnion
from sunion.tape import BEGINNING


class Instance:
    """See the header of the module. `restart` is the place where this incarnation begins. Times are clock values in
    microseconds, unless they are called event times."""

    def __init__(self, plan: Plan, me: InstanceId, restart: Restart, limits: Limits = PRODUCTION) -> None:
        fragment = plan.fragment(me.fragment)
        self.me = me
        self.plan = plan
        self.fragment = fragment
        self.limits = limits
        self.links = links_of(plan, fragment, me, plan.silence_us, limits)
        self.by_log = {c.log: link for link in self.links for c in link.upstream.candidates}
        self.graph = FragmentGraph(fragment)
        self.is_read_alone = plan.is_read_alone(fragment)
        self.reads_sources_only = all(edge.source for edge in fragment.edges)
        mode = Mode.OVERLAY_REDO if fragment.name == EGRESS else plan.mode
        self.strategy = Strategy(self.graph, mode, plan.checkpoint_interval_us is not None)
        self.engine = Engine(
            restart.incarnation,
            Host(self.graph, mode) if fragment.engine_of(me.replica) == "native" else None,
            plan.memory_bytes // 4,
            plan.silence_us,
            plan.delay_threshold_us,
        )
        self.soutput = SOutput(
            fragment.outputs, me.shard, Origin(me.replica, restart.incarnation), plan.bucket_us, limits.frame_bytes
        )
        self.sunion = SUnion(
            [link.port for link in self.links],
            merges_of(fragment, self.links),
            Settings(
                plan.bucket_us,
                self.grace_us,
                plan.stable_lag_of(plan.delay_threshold_us),
                plan.memory_bytes // max(len(self.links), 1),
                limits.step_rows,
                limits.step_bytes,
                limits.replay_bytes,
                ahead_us=plan.event_time_of(plan.delay_threshold_us),
                bucket_run_us=plan.bucket_run_us,
                disorder_us=plan.disorder_us,
                threshold_us=plan.delay_threshold_us,
            ),
            str(me),
            plan.policy,
            0,
        )
        self.claims = Claims(
            self.links, self.graph, self.strategy, self.soutput, restart.incarnation, restart.anchored_to
        )
        self.rereading = Rereading(self.links, self.sunion, plan.boundary_interval_us)
        others = [InstanceId(me.fragment, r, me.shard) for r in fragment.replicas if r != me.replica]
        self.stagger = Stagger.of(me, others, plan.heartbeat_us, self._calm_beats)
        self.restart = restart
        self.state = State.STABLE
        self.path_after: dict[tuple[InstanceId, str], tuple[int, int]] = {}
        self.is_away = restart.incarnation > 1
        self.away_until = 0
        self.sunion.most_rows = limits.first_rows
        self.was_full = False
        self.has_more = False
        self.last_now = 0
        self.wanted_at = 0
        self.heard_until = 0
        self.ticked_at = 0
        self.facts: Facts | None = None
        self.has_heard = False
        self.heartbeat_at = 0
        self.early_us = 0
        self.beats = CALM_BEATS - 1
        self.acknowledged: tuple[tuple[str, int], ...] = ()
        self.acknowledge_at = 0
        self.unwell_since = 0
        self.has_copied_ahead = False
        self.was_away = False
        self.boundary_at = 0
        self.said_us = 0
        self.rest_us = 0
        self.rows_at = 0
        self.wake_at = 0
        self.checkpoint_at = 0
        self.redo_started = 0
        self.redo_tuples = 0
        self.healing = False
        self.keeps_live = False
        self.ending_redo = False
        self.handed: dict[str, int] = {}
        self._set_alpha(at_once=True)

    # The four calls

    def begin(self, now: int, near: frozenset[LogId] = frozenset()) -> list[Effect]:
        """The first call. near: as in the event `Near`. CorruptError if the state comes from a checkpoint that is damaged."""
        restart, effects = self.restart, list[Effect]()
        if restart.state is not None and self.engine.host is None:
            self.graph.decode(restart.state)
        begin = orders.Begin(restart.incarnation, self.strategy.mode, restart.checkpoint, restart.state)
        self._order(begin, now, effects)
        for link in self.links:
            link.port.tape.begin(restart.inputs.get(link.port.key, 0), restart.position, restart.opened.get(link.port.key))
        self.sunion.begin_at(restart.position, restart.muted_until)
        if self.strategy.periodic:
            self.claims.copy(restart.position)
            self._order(orders.Copy(None), now, effects)
        self.last_now = self.wanted_at = self.heartbeat_at = self.heard_until = self.ticked_at = self.rows_at = now
        self.boundary_at = now + self.plan.sign_of_life_us
        self.away_until = now + self.grace_us
        self.stagger.begin(now)
        effects += self.soutput.start(restart.made, restart.written, restart.epoch, restart.written_to)
        self.soutput.stable_through, self.soutput.stable_ingest = restart.muted_until, now
        self.is_away = self.is_away or self.engine.is_behind(now)
        if self.is_away:
            self.state = State.RECOVERING
        self.stagger.watch(self.state, now)
        effects.append(StateChanged(self.state))
        for link in self.links:
            link.upstream.set_near(near)
            effects += link.upstream.begin(now, link.port.tape.next_id - 1)
        self.checkpoint_at = now + (self.plan.checkpoint_interval_us or 0)
        return effects

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Take one event at this clock value (microseconds, never falling). Returns the effects, in order.

        Only a Tick processes rows. The driver passes all other events first, so that none of them waits behind a long round
        of work. If that would take too long (`is_starving`), the driver passes a Tick while events wait. This Tick says since
        when the first of them waits. Silence, deadlines, corrections and the end of RECOVERING are then judged as of that
        time, when no event was waiting. So unread events are not taken for silence, and no bucket becomes overdue whose input
        may be among them.
        """
        effects: list[Effect] = []
        self._discount(now - self.wanted_at, now)
        self._pace(now - self.last_now)
        self.last_now = self.heard_until = now
        self.has_heard = self.has_heard or not isinstance(event, Tick)
        match event:  # the most frequent ones first
            case Tick(heard_until):
                self._advance(now, heard_until, effects)
            case Frames(log, items, end):
                self._take_frames(log, items, end, now, effects)
            case Tail(log, frame):
                self.by_log[log].upstream.hear_tail(log, frame, now)
            case ReadDone():
                self.rereading.take(event, now)
            case Unavailable(log):
                self._turn_away(log, now, effects)
            case Received(message):
                if isinstance(message, PathAfter):
                    self.path_after[(message.sender, message.key)] = (message.micros, now)
                else:
                    effects += self.stagger.receive(message, now)
                    self.stagger.watch(self.state, now)
                    self._beat_soon(now)
            case Threshold():
                self._set_threshold(event)
            case Near(logs):
                for link in self.links:
                    link.upstream.set_near(logs)
            case CheckpointStored(number):
                self.claims.note_stored(number)
            case Answered(place, answer):
                self._follow(self.engine.take(place, answer, now), answer, now, effects)
            case _:
                assert_never(event)
        self.has_more = self.has_more or not isinstance(event, Tick)
        self.wanted_at = self._next_deadline()
        return effects

    def is_starving(self, now: int) -> bool:
        """Whether a Tick must come before the next waiting event. This is so if the last Tick was so long ago that readers
        would soon take this instance for silent, or if the ports hold more than memory allows."""
        if not self.has_heard:
            return False  # no event has come since the last Tick, so another Tick would change nothing
        patience_us = min(self.plan.heartbeat_us // 2, self.silence_us // 4)
        is_late = now >= self.wanted_at and now - self.ticked_at > patience_us
        return is_late or self.held_bytes > self.plan.memory_bytes

    def next_deadline(self) -> int:
        """The latest clock value for the next `handle(Tick())`."""
        return self.wanted_at

    def status(self) -> Status:
        """The instance as it is now. Other threads may call this. During a call of `handle` the fields may be of different
        moments."""
        path_after_us, skew_us = self._path_after(), self.skew_us
        return Status(
            state=self.state,
            incarnation=self.restart.incarnation,
            delay_threshold_us=self.delay_threshold_us,
            least_threshold_us=least_threshold_us(self.plan, self.engine.latency_us + path_after_us + skew_us),
            alpha_x_us=self.sunion.alpha_x_us,
            skew_us=skew_us,
            engine_latency_us=self.engine.latency_us,
            path_after_us=path_after_us,
            is_engine_busy=bool(self.engine.under_way),
            missing=self.sunion.missing(),
            position=self.sunion.base.position,
            stable_through=self.sunion.stable_through,
            is_tentative=self.sunion.live is not None,
            is_redoing=self.sunion.redoing,
            redo_tuples=self.redo_tuples,
            held_rows=sum(link.port.held_rows for link in self.links),
            checkpoint_bytes=self.engine.copied_bytes,
            inputs=tuple([link.status() for link in self.links]),
        )

    @property
    def is_calm(self) -> bool:
        """Whether its readers have been told that it may be silent for longer (R24). Other threads may ask this."""
        return self.said_us > 0

    @property
    def runs_here(self) -> bool:
        """Whether its operators run here, and not in an operator host of another process."""
        return self.engine.host is not None

    def is_at_rest(self, now: int) -> bool:
        """Whether it has had no rows for a while, has nothing to correct, and X leaves the time for a pause (R24). Other
        threads may ask this."""
        pause_us = self.plan.calm_pause_us
        return pause_us > 0 and now - self.rows_at >= CALM_AFTER_PAUSES * pause_us and self._is_clean

    def can_correct(self, now: int) -> bool:
        """Whether all tentative output can be corrected now, whether or not this instance has the permission (R16, R22)."""
        return self.sunion.healed(now, self.strategy.replay_from(self.sunion.base.position)) is Heal.FULL

    @property
    def held_bytes(self) -> int:
        """The size of the stable rows that the ports hold in memory, in bytes."""
        return sum([link.port.tape.nbytes for link in self.links])

    @property
    def delay_threshold_us(self) -> int:
        """The current X, in microseconds."""
        return self.engine.delay_threshold_us

    @property
    def skew_us(self) -> int:
        """How far our clock is behind the clocks that stamped the recent input, in microseconds, as far as the stamps show
        it."""
        return max([link.skew_us for link in self.links], default=0)

    @property
    def silence_us(self) -> int:
        """The silence timeout, in microseconds."""
        return self.plan.silence_us

    @property
    def away_us(self) -> int:
        """After being late by more than this, in microseconds, the instance was away. Readers of a calm one have been told that
        it may be silent for longer."""
        return max(HEARTBEATS_TO_DEATH * self.plan.heartbeat_us, self.plan.silence_us) + max(self.said_us, self.rest_us)

    @property
    def grace_us(self) -> int:
        """Stable input is not overdue sooner than this after its arrival, in microseconds."""
        return 2 * self.plan.boundary_interval_us

    def _stamp(self, now: int) -> int:
        """The time of sending for a boundary, by the known clock that is the furthest ahead. Deadlines may count from this
        clock, and a reader of this instance can notice its lead by these stamps only (R9)."""
        return now + self.skew_us

    def _next_deadline(self) -> int:
        if self.has_more:
            return self.last_now
        waits = [self.heartbeat_at, self.boundary_at, *self._silences()]
        overdue = None if self.is_away else self.sunion.next_deadline()
        if overdue is not None and overdue > self.last_now:
            waits.append(overdue)
        copy_ahead = None if self.is_away else self._copy_ahead_at()
        if copy_ahead is not None and copy_ahead > self.last_now:
            waits.append(copy_ahead)
        lease = self.stagger.next_deadline()
        if lease is not None and lease > self.last_now:
            waits.append(lease)
        return min(waits)

    def _silences(self) -> Iterator[int]:
        """When each input that can be heard will count as silent, if nothing is heard of it until then."""
        for link in self.links:
            if not link.port.unreachable and link.upstream.silent_at > self.last_now:
                yield link.upstream.silent_at

    # Input

    def _take_frames(self, log: LogId, items: tuple[tuple[int, Frame], ...], end: int, now: int, effects: list[Effect]) -> None:
        link = self.by_log[log]
        candidate = link.upstream.candidate(log)
        if link.port.silent or candidate.target is None:
            self._note_return(link, candidate, end, now)
        for offset, frame in items:
            candidate.next_offset = offset + 1
            if not link.upstream.hear(candidate, frame, now) or not link.upstream.is_read(candidate):
                continue
            if log.replica and link.lacks(frame):
                self._turn_away(log, now, effects)
                return
            if candidate is link.upstream.live:
                self._take_visible(link, candidate, frame, now)
            else:
                self._take_correction(link.port, frame, now)
        if link.rows_at == now and now >= self.wake_at:
            self._wake_calm(now, effects)

    def _wake_calm(self, now: int, effects: list[Effect]) -> None:
        """Rows have come, and wait for the boundaries of the other inputs. Wake the sources of those that had no rows for a
        while: now, and again before they would be calm, as long as rows come (R24)."""
        pause_us = self.plan.calm_pause_us
        if not pause_us:
            return
        self.wake_at = now + pause_us
        quiet = {stream for link in self.links if now - link.rows_at >= pause_us for stream in link.sources}
        if quiet:
            effects.append(Wake(tuple(sorted(quiet))))

    def _turn_away(self, log: LogId, now: int, effects: list[Effect]) -> None:
        """Read another replica (R27): this one's log lacks rows that we need, for example because it restarted by the anchor
        of a partner."""
        link = self.by_log[log]
        candidate = link.upstream.candidate(log)
        candidate.lacking_until = now + self.limits.lacking_heartbeats * self.plan.heartbeat_us
        self.rereading.turn_away(link, log)
        effects.append(Unfollow(log))
        link.upstream.drop(candidate)

    def _note_return(self, link: Link, candidate: Candidate, end: int, now: int) -> None:
        """Note that a log is read for the first time, or again. What it holds already is a backlog (R12)."""
        candidate.target = end
        if all(other.port.silent for other in self.links) and not self.is_away:
            # All inputs were silent, so this instance was cut off. If there are several inputs, the others return soon.
            self.is_away, self.away_until = True, now + (self.grace_us if len(self.links) > 1 else 0)

    def _take_visible(self, link: Link, candidate: Candidate, frame: Frame, now: int) -> None:
        port = link.port
        match frame:
            case Data():
                link.rows_at = now
                if frame.tentative:
                    port.take_tentative(frame)
                else:
                    port.take_stable(frame, now)
            case Boundary():
                if not candidate.is_behind:
                    link.compare_clocks(frame, now)
                # What is calm waits on its way for what else is calm; rows do not, nor what comes with them.
                is_prompt = not frame.pause or link.rows_at == now
                is_measure = frame.time > port.boundary and is_prompt and not candidate.is_behind
                if is_measure and self.state is State.STABLE:
                    link.hop.note(max(now - frame.sent, 0))
                port.take_boundary(frame, now)
            case Undo() | Start():
                port.revoke(now)
            case RecDone():
                pass
            case _:
                assert_never(frame)

    def _take_correction(self, port: Port, frame: Frame, now: int) -> None:
        if isinstance(frame, Data) and not frame.tentative:
            port.take_stable(frame, now)
        elif isinstance(frame, Boundary) and not frame.tentative:
            port.take_boundary(frame, now)

    # The loop

    def _advance(self, now: int, heard_until: int | None, effects: list[Effect]) -> None:
        self.ticked_at, self.has_heard = now, False
        is_waiting = heard_until is not None
        self.heard_until = min(heard_until, now) if heard_until is not None else now
        self._look_at_inputs(self.heard_until, effects)
        self._maybe_return(self.heard_until)
        self._maybe_change_state(now, effects)
        began = self._maybe_reconcile(now, effects)
        self.has_more = began or self._hand_on(now, effects) or is_waiting
        self._maybe_change_state(now, effects)
        self._maybe_copy_ahead(now, effects)
        self._maybe_checkpoint(now, effects)
        effects += self.rereading.ask(now)
        self._beat(now, effects)
        self.sunion.trim(self.strategy.replay_from(self.sunion.base.position))

    def _hand_on(self, now: int, effects: list[Effect]) -> bool:
        """Pass the items of SUnion to the host and write the output, for a bounded amount of work. True if more work is left
        and can be done now."""
        self.sunion.standing_in = bool(self.stagger.promised)
        rows = 0
        for _ in range(self.limits.steps_per_call):
            if self.engine.is_full:
                return False
            items = self.sunion.advance(self.heard_until, not self.is_away)
            if not items:
                return False
            for item in items:
                rows += self._perform(item, now, effects)
            if rows >= self.sunion.most_rows:
                self.was_full = True
                break
        return True

    def _pace(self, took_us: int) -> None:
        """Adapt the rows of one call to the duration of the last full call. Heartbeats are sent between calls, so a call must
        not take longer than a heartbeat interval."""
        if not self.was_full:
            return
        self.was_full = False
        if took_us > self.plan.heartbeat_us:
            self.sunion.most_rows = max(self.sunion.most_rows // 2, self.limits.least_rows)
        elif took_us < self.plan.heartbeat_us // 4:
            self.sunion.most_rows = min(self.sunion.most_rows * 2, self.limits.step_rows)

    def _look_at_inputs(self, now: int, effects: list[Effect]) -> None:
        for link in self.links:
            port, upstream = link.port, link.upstream
            revoke, switched = upstream.choose(now, port.tape.next_id - 1)
            if revoke:
                port.revoke(now)
            effects += switched
            effects += upstream.approach(now, port.tape.next_id - 1, port.is_firm)
            live = upstream.live
            port.observe(upstream.is_silent(live, now), live.state is State.STABLE)

    def _perform(self, item: Item, now: int, effects: list[Effect]) -> int:
        """Give an item to the host. Returns the number of its input rows."""
        match item:
            case Step():
                rows: int = sum(batch.num_rows for batch in item.batches.values())
                if rows:
                    self.rows_at = now
                if self.sunion.redoing and not item.tentative:
                    self.redo_tuples += rows
                is_timed = self.state is State.STABLE and not item.muted and not self.sunion.redoing
                what = self._rows_of(item) if self.engine.host is None else ""
                self._order(item, now, effects, EmitRows(item.without_rows()), is_timed, what)
                return rows
            case Mark():
                number = None
                if self.strategy.copies_at_mark and not item.is_early and self.claims.in_memory != item.time:
                    number = self.claims.next_checkpoint()
                    self.claims.copy(item.time)
                then = StoreCopy(number, item.time) if number is not None else None
                self._order(orders.SetMark(number, item.is_early), now, effects, then)
                self._maybe_change_state(now, effects)
            case Redone():
                self.ending_redo = True
                self._order(orders.EndRedo(), now, effects, EndCorrection())
            case _:
                assert_never(item)
        return 0

    def _rows_of(self, step: Step) -> str:
        """The ids of the rows that a step has just taken, as text. It helps to find a row on which an operator fails."""
        view = self.sunion.live if step.tentative else self.sunion.base
        assert view is not None
        ids = []
        for link, cursor in zip(self.links, view.cursors, strict=True):
            first, self.handed[link.port.key] = self.handed.get(link.port.key, 0), cursor.next_id
            ids.append(f"{link.port.key} {first}..{link.port.tape.next_id - 1}")
        return f"The rows are among these ids: {', '.join(ids)}."

    # Orders, and what follows from their answers

    def _order(
        self,
        order: orders.Order,
        now: int,
        effects: list[Effect],
        then: Consequence | None = None,
        is_timed: bool = False,
        what: str = "",
    ) -> None:
        """Give an order to the host, and do what follows if the answer comes at once; see `Engine.hand`."""
        answer = self.engine.hand(order, now, effects, then, is_timed, what)
        if answer is not None:
            self._follow(then, answer, now, effects)

    def _follow(self, then: Consequence | None, answer: Answer, now: int, effects: list[Effect]) -> None:
        match then:
            case EmitRows(step):
                self._emit(step, answer, now, effects)
            case StoreCopy(number, time):
                effects.append(self.claims.store(number, time, answer.state))
                self.checkpoint_at = now + (self.plan.checkpoint_interval_us or 0)
            case UndoTentative(cause, defer):
                effects += self.soutput.undo(cause, defer)
            case EndCorrection():
                self._finish_redo(now, effects)
            case None:
                pass
            case _:
                assert_never(then)

    def _emit(self, step: Step, answer: Answer, now: int, effects: list[Effect]) -> None:
        if any(batch.num_rows for batch in answer.outputs.values()):
            self.rows_at = now
        pause_us = self._pause_us(now)
        if pause_us and self._is_left_out(step):
            return
        said_us, rest_us = pause_to_say(pause_us, self.plan.calm_interval_us), self._rest_us
        written = self.soutput.emit(
            answer.outputs,
            step,
            self.state,
            self._lacking(),
            self._stamp(now),
            lambda next_ids: self.claims.anchor(step.upto, next_ids),
            max(said_us, rest_us),
        )
        effects += written
        if written:  # frames that are held back for a live branch are no heartbeat for readers
            self.said_us, self.rest_us = said_us, rest_us
            # What comes next at the same pace may be a little late: a sign of life just before it would be work for all.
            slack_us = 0 if pause_us else self.plan.sign_of_life_us // 4 + rest_us
            self.boundary_at = now + self.plan.sign_of_life_us + slack_us + pause_us
        if self.soutput.deferred is not None and self.soutput.deferred_bytes > self.plan.memory_bytes:
            # The deferred corrections no longer fit in memory. Write them now, and continue without the live branch, if any.
            # REC_DONE follows after the rest of the corrections.
            effects += self.soutput.show_deferred()
            self.claims.show()
            if self.keeps_live:
                self.sunion.drop_live()
                self.engine.drop_live(now, effects)

    def _pause_us(self, now: int) -> int:
        """How much longer than usual this instance is silent: 0 unless it is calm (R24). It is calm if it is STABLE, has
        nothing to correct, and has had no rows for a while, and if no reader waits for its boundaries beside other input.

        The pause ends a moment after the sources write their next boundaries (`tick_after`), since these make it write one
        anyway. So what many calm instances write comes at one time.
        """
        if not self.is_read_alone or not self.is_at_rest(now) or self.state is not State.STABLE or self.is_away:
            return 0
        usual_us = self.plan.sign_of_life_us
        return tick_after(now + usual_us, self.plan.calm_interval_us) - usual_us // 2 - now

    @property
    def _rest_us(self) -> int:
        """How much longer than usual this instance is silent since its inputs are: sources of a loaded process gather rows, and
        say so (R24). Not while it has something to correct."""
        if self.is_away or self.state is not State.STABLE or not self._is_clean:
            return 0
        return max([self._rest_of(link.upstream.live.pause_us) for link in self.links], default=0)

    def _rest_of(self, pause_us: int) -> int:
        """A pause that a boundary says, if rows gather meanwhile; 0 if it is longer: that of a calm stream."""
        return pause_us if pause_us <= self.plan.rest_us(MOST_LOADED, self.delay_threshold_us) else 0

    @property
    def _is_clean(self) -> bool:
        """Whether it has nothing to correct."""
        return self.sunion.live is None and not self.sunion.redoing and not self.soutput.is_provisional

    def _is_left_out(self, step: Step) -> bool:
        """Whether a calm instance leaves out the boundary of a step. Replicas leave out the same ones, by event time, so that
        none seems to lag behind another."""
        if step.tentative or step.muted or step.upto >= INFINITY:
            return False
        span = max(self.plan.calm_interval_us // self.plan.bucket_run_us, 1) * self.plan.bucket_us
        return step.upto // span == self.soutput.stable_through // span

    def _maybe_copy_ahead(self, now: int, effects: list[Effect]) -> None:
        """Copy the state for a MARK that is likely to come (DPC, 'Checkpoint/redo': on entering UP_FAILURE).

        The first bucket that is held back waits anyway, so the copy costs no time. It is not made before half of the wait is
        over, so that a short failure costs nothing. It is made once for each failure: if stable rows are processed after it,
        the state must be copied again at MARK in any case.
        """
        due = self._copy_ahead_at()
        if due is None or now < due:
            return
        self.has_copied_ahead = True
        time = self.sunion.base.position
        if self.claims.in_memory == time:
            return
        number = self.claims.next_checkpoint()
        self.claims.copy(time)
        self._order(orders.Copy(number), now, effects, StoreCopy(number, time))

    def _copy_ahead_at(self) -> int | None:
        """Clock value at which the copy for a likely MARK must be made; None if none must be made."""
        is_waiting = self.state is State.UP_FAILURE and self.sunion.live is None and not self.sunion.redoing
        if not is_waiting or self.has_copied_ahead or not self.strategy.copies_at_mark:
            return None
        if self.plan.policy.failure is Hold.SUSPEND or self.sunion.base.position < self.sunion.muted_until:
            return None
        if self.sunion.base.position <= BEGINNING:
            return None  # the state is still empty
        # Further down the path the first row to be held back may be a tentative one. There is no time left for a copy then, so
        # the wait counts from the start of the failure, too.
        wait_us = self.sunion.alpha_x_us
        overdue = self.sunion.next_deadline()
        waits = [self.unwell_since + wait_us, *([overdue] if overdue is not None else [])]
        return min(waits) - wait_us // 2

    # Failure and healing

    def _maybe_reconcile(self, now: int, effects: list[Effect]) -> bool:
        """Roll back once the failure has healed (R16), and a peer stays live meanwhile or no peer can (R22).

        True if a redo has begun. Its first step is left to the next call, so that readers get the new state at once. Peers
        are judged as of the time up to which their messages were read.
        """
        if self.sunion.live is None and not self.healing:
            return False  # there is no tentative output
        mark = self.sunion.base.position
        replay_from = mark if self.sunion.mark_is_early else self.strategy.replay_from(mark)
        is_healed = self.healing or self.sunion.healed(self.heard_until, replay_from) is not None
        if is_healed and self.sunion.is_early and self.state is State.STABLE:
            # No input has failed, and the correction is short. So no peer has to stay live, and no reader has to switch.
            # Readers may still delay the rows that are undone now, so these stay until the correction can replace them.
            self._roll_back(replay_from, False, True, now, effects)
            return True
        if is_healed and not self.healing:
            self.healing = True
            self.sunion.eager_from = now + self.grace_us + (self.plan.heartbeat_us if self.stagger.peers else 0)
        if not self.healing or self.state is not State.UP_FAILURE or self.is_away:
            return False
        is_new = self.heard_until - self.unwell_since < self.plan.heartbeat_us
        if self.stagger.peers and is_new and not self._is_soon_corrected(mark):
            return False  # a peer may have the same failure, and its heartbeat that says so may still be under way
        if self.plan.policy.stabilization is Hold.SUSPEND:
            permission = Permission.COVERED
        else:
            permission, sends = self.stagger.request(self.heard_until)
            effects += sends
        if permission is Permission.WAIT:
            return False
        keep_live = permission is Permission.ALONE and self.strategy.mode is Mode.OVERLAY_REDO
        self._roll_back(replay_from, keep_live, keep_live, now, effects)
        return True

    def _roll_back(self, replay_from: int, keep_live: bool, defer: bool, now: int, effects: list[Effect]) -> None:
        self.sunion.roll_back(now, replay_from, keep_live)
        self.keeps_live = keep_live
        self.healing = False
        self.redo_started, self.redo_tuples = now, 0
        self._maybe_change_state(now, effects)
        self._order(orders.RollBack(keep_live), now, effects, UndoTentative(self.sunion.cause, defer))

    def _is_soon_corrected(self, mark: int) -> bool:
        """Whether one step is enough to correct the backlog after a cut of all inputs. Then the replicas do not take turns:
        otherwise the replica that stays live would first process the same backlog as tentative."""
        return self.was_away and self.sunion.to_redo(self.strategy.replay_from(mark)) <= self.limits.step_rows

    def _finish_redo(self, now: int, effects: list[Effect]) -> None:
        self.ending_redo = False
        self._end_correction(effects)
        effects.append(Reconciled(self.redo_started, self.redo_tuples, self.engine.copied_bytes))
        effects += self.stagger.done()
        self._maybe_change_state(now, effects)

    def _end_correction(self, effects: list[Effect]) -> None:
        effects += self.soutput.end_correction()
        self.claims.show()

    def _maybe_change_state(self, now: int, effects: list[Effect]) -> None:
        sunion = self.sunion
        has_failed_input = False
        for link in self.links:  # called twice for each event, so without a generator
            has_failed_input |= link.port.failed
        is_marked = sunion.live is not None
        is_redoing = sunion.redoing or (self.ending_redo and not is_marked)
        if sunion.is_early:
            is_marked = is_redoing = False
        facts = Facts(is_redoing, self.is_away, is_marked, has_failed_input)
        if facts == self.facts:
            return
        self.facts = facts
        state = state_of(facts)
        if state is not self.state:
            self._become(state, now, effects)

    def _become(self, state: State, now: int, effects: list[Effect]) -> None:
        check_transition(self.state, state)
        before, self.state = self.state, state
        self.stagger.watch(state, now)
        self._beat_soon(now)
        if state is State.UP_FAILURE:
            self.has_copied_ahead = False
            self.unwell_since, self.was_away = now, before is State.RECOVERING
        elif state is State.RECOVERING:
            self.stagger.lose_lease()
        effects.append(StateChanged(state))
        effects += self.soutput.heartbeat(state, self._lacking(), self._stamp(now))
        self.said_us = self.rest_us = 0
        self.boundary_at = min(self.boundary_at, now + self.plan.sign_of_life_us)
        effects += self._tell_peers()

    def _tell_peers(self) -> list[Effect]:
        """Send the state to all peers. It is RECOVERING if the host has stopped: a correction cannot end then, and no peer
        should wait for it (R22)."""
        state = State.RECOVERING if self.engine.is_silent(self.heard_until) else self.state
        return [Send(peer, Heartbeat(self.me, state)) for peer in self.stagger.peers]

    # Away and back

    def _discount(self, late_us: int, now: int) -> None:
        """Exclude the time by which this call is late. The instance was busy or stopped in it, so others were not silent. If
        the time was long, the instance was away, and what arrives now is a backlog."""
        if late_us <= self.plan.boundary_interval_us:
            return
        for link in self.links:
            link.upstream.discount(late_us)
        self.stagger.discount(late_us)
        self.engine.discount(late_us)
        self.path_after = {reader: (micros, heard + late_us) for reader, (micros, heard) in self.path_after.items()}
        if late_us > self.away_us:
            for link in self.links:
                link.upstream.forget_targets()
            self.is_away, self.away_until = True, now + self.grace_us

    def _maybe_return(self, now: int) -> None:
        if self.engine.is_silent(now):
            self.is_away = True
        if self.is_away and now >= self.away_until and not self.engine.is_behind(now):
            present = [link.upstream.live for link in self.links if not link.port.silent]
            self.is_away = any(candidate.target is None or candidate.is_behind for candidate in present)

    # Checkpoints, boundaries and heartbeats

    def _maybe_checkpoint(self, now: int, effects: list[Effect]) -> None:
        interval = self.plan.checkpoint_interval_us
        if interval is None or now < self.checkpoint_at or self.state is not State.STABLE:
            return
        time = self.sunion.base.position
        if time < self.sunion.muted_until or (time == self.strategy.copied_at and not self.claims.saved):
            return  # no rows were processed since the last copy, and no upload is unconfirmed
        # The interval is from the end of one copy to the start of the next. Otherwise a host that needs longer than the
        # interval for a copy would do nothing else.
        self.checkpoint_at, number = INFINITY, self.claims.next_checkpoint()
        self.claims.copy(time)
        self._order(orders.Copy(number), now, effects, StoreCopy(number, time))

    def _beat(self, now: int, effects: list[Effect]) -> None:
        if now >= self.boundary_at:
            pause_us, self.rest_us = self._pause_us(now), self._rest_us
            self.boundary_at = now + self.plan.sign_of_life_us + max(pause_us, self.rest_us)
            self.said_us = pause_to_say(pause_us, self.plan.calm_interval_us)
            said_us = max(self.said_us, self.rest_us)
            effects += self.soutput.heartbeat(self.state, self._lacking(), self._stamp(now), said_us)
        # What is not urgent goes with what is done now.
        if now < self.heartbeat_at - self.early_us:
            return
        quiet_us = self._pause_us(now) if self.stagger.is_calm else 0
        rest_us = self.rest_us if self.stagger.is_calm else 0
        self.early_us = self.plan.sign_of_life_us if quiet_us else rest_us or self.plan.heartbeat_us // 4
        calm_beats = self._calm_beats if quiet_us else CALM_BEATS
        self.heartbeat_at = now + (self.plan.sign_of_life_us + quiet_us if quiet_us else self.plan.heartbeat_us + rest_us)
        is_reminder = self.beats + 1 >= calm_beats
        # Since the last reminder; those of the pause count as if they had been.
        self.beats = (0 if is_reminder else self.beats + 1) + (quiet_us or rest_us) // self.plan.heartbeat_us
        self._forget_readers()
        self._set_alpha()
        self.stagger.forget_dead(self.heard_until)
        if is_reminder or not self.stagger.is_calm:
            effects += self._tell_peers()
        if is_reminder or now >= self.acknowledge_at:
            self._acknowledge(now, calm_beats * self.plan.heartbeat_us, effects)
        # Producers may hold a bucket back for their whole alpha*X. It must still arrive here before it is overdue by our clock.
        rest = self.engine.latency_us + self._path_after() + self.skew_us + self.plan.spread_us(self.fragment)
        for link in self.links:
            micros = link.hop.value * 3 // 2 + rest
            effects += [Send(who, PathAfter(self.me, link.port.key, micros)) for who in link.to_tell(micros, is_reminder)]

    def _acknowledge(self, now: int, repeat_us: int, effects: list[Effect]) -> None:
        """Tell what is no longer needed. Nobody waits for that, so it is told with the reminders only, however fast rows come.
        A repetition tells that this reader lives, well before its claim would end."""
        acknowledged = self.claims.acknowledge(bool(self.stagger.peers))
        if acknowledged and (acknowledged != self.acknowledged or now >= self.acknowledge_at):
            self.acknowledged = acknowledged
            self.acknowledge_at = now + min(repeat_us, self.plan.retention_us // 4)
            effects.append(Acknowledge(acknowledged))

    @property
    def _calm_beats(self) -> int:
        """After how many heartbeat intervals an instance without rows repeats what it has said, while all replicas are
        STABLE."""
        return CALM_BEATS * (QUIET_TIMES if self.plan.calm_pause_us else 1)

    def _beat_soon(self, now: int) -> None:
        """End the pause of the heartbeats if there is no calm any more: peers judge by them now."""
        if not self.stagger.is_calm:
            self.heartbeat_at = min(self.heartbeat_at, now + self.plan.heartbeat_us)

    def _lacking(self) -> tuple[str, ...]:
        """The names of the inputs that are missing at present, of whatever fragment they are inputs (R10)."""
        if self.state is not State.UP_FAILURE:
            return ()
        names: dict[str, None] = {}
        for link in self.links:
            if link.port.silent:
                names[link.port.name] = None
            elif link.port.failed:
                names.update(dict.fromkeys(link.upstream.live.lacking))
        return tuple(names)

    def _set_threshold(self, wanted: Threshold) -> None:
        """A new X holds at once, for what is held back too. So do the intervals that follow from it."""
        x_us, plan = wanted.delay_threshold_us, self.plan
        self.plan = replace(
            plan,
            boundary_interval_us=wanted.boundary_interval_us,
            heartbeat_us=wanted.heartbeat_us,
            silence_us=wanted.silence_us,
            calm_pause_us=wanted.calm_pause_us,
        )
        self.engine.delay_threshold_us, self.engine.silence_us = x_us, wanted.silence_us
        self.sunion.set_threshold(x_us, plan.stable_lag_of(x_us), plan.event_time_of(x_us), self.grace_us)
        for link in self.links:
            link.upstream.silence_us = wanted.silence_us
        self.rereading.retry_us = wanted.boundary_interval_us
        self.stagger.set_pace(wanted.heartbeat_us, self._calm_beats, self.last_now)
        # What was to come by the former intervals may be due by now.
        self.heartbeat_at = min(self.heartbeat_at, self.last_now + wanted.heartbeat_us)
        self.boundary_at = min(self.boundary_at, self.last_now + self.plan.sign_of_life_us)
        self._set_alpha(at_once=True)

    def _set_alpha(self, at_once: bool = False) -> None:
        """R9: alpha*X is X, minus the latency of the host and of the path after it, minus the skew of our clock, minus a
        reserve. It is frozen while the instance is not STABLE, so that a failure does not measure itself. Only a new X
        changes it then.

        A deadline is the ingest time by the source's clock, plus alpha*X. A clock that is behind meets it late by its skew. The
        reserve is a tenth of X, or a bucket and a boundary interval if that is more: a window that ends inside a bucket counts
        from the first boundary past its end, and the bucket counts from the first boundary past its own end.

        An alpha*X that the user has fixed applies to the instances that read sources only. All instances further down the path
        count from the same ingest time, and their input arrives when that time is over already. They release what is complete,
        and have the rest of X to wait for other input, such as the rows of another shard.
        """
        if at_once or self.state is State.STABLE:
            left = self.delay_threshold_us - self.engine.latency_us - self._path_after() - self.skew_us - self._reserve_us
            alpha_x_us, fixed = max(left, self.delay_threshold_us // 4), self.plan.alpha_x_us
            if fixed is not None and self.reads_sources_only:
                self.sunion.alpha_x_us = fixed
            else:
                self.sunion.alpha_x_us, self.sunion.fixed_alpha_x_us = max(alpha_x_us, fixed or 0), fixed
        for link in self.links:
            link.upstream.stable_slack_us = self.sunion.alpha_x_us // 2
            # A replica in UP_FAILURE has held its output back for alpha*X already. Only the reserve is left.
            link.upstream.slack_us = max(self._reserve_us // 2, self.plan.boundary_interval_us)

    @property
    def _reserve_us(self) -> int:
        return max(self.delay_threshold_us // 10, self.plan.completion_us)

    def _path_after(self) -> int:
        """The largest latency from here to a client, in microseconds, by the last messages of the readers."""
        told = tuple(self.path_after.values())  # a copy, because other threads call this, too
        return max([micros for micros, _ in told], default=0)

    def _forget_readers(self) -> None:
        """Forget the path latencies of readers that were not heard for long. They no longer read this instance."""
        beats = self.limits.forgotten_heartbeats * self._calm_beats // CALM_BEATS
        oldest = self.heard_until - beats * self.plan.heartbeat_us
        self.path_after = {reader: told for reader, told in self.path_after.items() if told[1] >= oldest}
