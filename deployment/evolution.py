"""How a running query changes its streams and operators: a new version of it is built beside the old one, and takes over. Pure.

    the state of the record      the next change, and who makes it
    ───────────────────────────────────────────────────────────────────────────────────────────────
    (one version)                a user: a version is added beside it         -> building, or claiming
    claiming                     the monitor, once it knows what the new      -> building
                                 version may read (`deployment.shared_sources`)
                                 a user: rolls back                           -> leaving
    building                     the monitor, once it has caught up           -> taking_over, at a time T
                                 a user: rolls back                           -> leaving
    taking_over                  the monitor, if an egress has missed T       -> taking_over, at a later T
                                 the monitor, once all egresses have promised -> taking_over, agreed
                                 the monitor, if not all promise soon         -> taking_over, at a later T; or, where an egress
                                                                                 is silent, as before it
                                 the monitor, once all egresses have changed  -> taken_over, or rolled_back
    taken_over, rolled_back      a user: rolls back                           -> rolling_back
                                 a user: settles                              -> leaving
    rolling_back                 as building
    leaving                      who began it, once the processes have ended  -> (one version)

Every change of the record is made where no other can come between (`services.kafka.queries`), so a process that is killed
leaves one of these states, and the next one goes on from there. What clients get changes at the egresses alone, each at the
event time T (`logs.egress_switch`): rows before T are of the version that was in charge, rows from T on of the other one. The
time of a window's row is the last microsecond before its end, so a window belongs to one version as a whole, sessions too.

T lies a little ahead of what clients have been given, since an egress that has passed T cannot go back. All sites change at the
same T. So an egress waits at T until all have promised to end there. It must not wait for long, whatever another site does, so
the monitor takes a T back that not all have promised soon. An egress that is cut off from the home site does not hear of that.

A version that reads from a time on lacks the rows before it, and so would give half-filled windows for a while: as stable rows,
which nothing corrects. So T is no earlier than the time from which its results depend on no row from before its start. A
version that reads what the one in charge keeps (`--from state`) has all rows that this one's results depend on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import lcm
from shlex import quote
from typing import Any

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY, State
from boreal.model.schema import Schema
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import plan
from boreal.query.spec import Query
from deployment.query_record import Beside, QueryRecord, SharedSources, Takeover
from deployment.recompute import FragmentSpans
from deployment.shared_sources import STATE, must_carry_states, refuse_other_logs
from formats.json_text import moment, time_us
from sunion.tape import BEGINNING

CLAIMING = "claiming"
BUILDING = "building"
TAKING_OVER = "taking_over"
TAKEN_OVER = "taken_over"
ROLLING_BACK = "rolling_back"
ROLLED_BACK = "rolled_back"
LEAVING = "leaving"

EARLIEST = "earliest"
LATEST = "latest"

TOPICS_OF_CLIENTS = ("latest", "debezium", "records")
"""The fields of a query that say which topics clients have beside q.out and q.stable. All versions write the same ones."""

MARGIN_US = 2_000_000
"""How far ahead of the results T is chosen: the record has to be written and read, and statuses come every second."""
MARGIN_US_MAX = 3_600_000_000
LOOK_US = 1_000_000
"""How often the monitor looks. Once it has looked for longer than T was ahead, a T that not all have promised is taken back."""
LAG_US = 250_000
LAG_SHARE = 4
"""A version has caught up if its results are no further behind than X / LAG_SHARE, or LAG_US, and what its own intervals add:
clients wait for so long at the takeover, and for the egress besides."""
LIVE_US = 60_000_000
"""Event time that is no further behind the clock than this goes on as the clock does."""


# The record


def state_of(record: QueryRecord) -> str | None:
    """The state; None for a query with one version."""
    beside = record.beside
    if beside is None:
        return None
    if beside.leaves:
        return LEAVING
    if not beside.is_placed:
        return CLAIMING
    if record.takeover is not None:
        return TAKING_OVER
    if beside.takes_over:
        return ROLLING_BACK if _was_in_charge(record, beside) else BUILDING
    return TAKEN_OVER if beside.version < record.version else ROLLED_BACK


def resolve_start(start: str, now_us: int) -> str:
    """Where a version begins to read, as its record says it: 'earliest', 'state' or a time. UserError for anything else."""
    if start in (EARLIEST, STATE):
        return start
    if start == LATEST:
        return moment(now_us)
    try:
        return moment(time_us(start))
    except ValueError:
        fix = "write earliest, latest, state, or a time such as 2026-11-23T14:00:00Z"
        raise UserError("--from", start, "is no place to begin at", fix) from None


def evolve(old: QueryRecord, new: Query, start: str) -> QueryRecord:
    """The record with a new version beside the one in charge. start: see `resolve_start`. UserError if that cannot be."""
    state = state_of(old)
    if state is not None:
        fix = f"let one go first: boreal query {'settle' if state in (TAKEN_OVER, ROLLED_BACK) else 'rollback'} {old.name}"
        raise UserError("version", old.versions, f"is {state.replace('_', ' ')}, and a query has two versions at most", fix)
    if old.paused:
        raise UserError("NAME", old.name, "is paused, and would never take over", f"run boreal query resume {old.name}")
    if not old.is_placed:
        problem = "has not begun: it is not known yet which sources it joins"
        raise UserError("NAME", old.name, problem, f"wait until it is ready: boreal query show {old.name}")
    running = old.query
    if running == new:
        raise UserError("--evolve", None, f"is not needed: {old.name} runs as the file says", "leave it out")
    for topic in TOPICS_OF_CLIENTS:
        if getattr(running, topic) != getattr(new, topic):
            wanted = new.dump().get(topic, getattr(new, topic))
            value = quote(f"{topic}={json.dumps(wanted, separators=(',', ':'))}")
            fix = f"change it by itself, before or after: boreal query set {old.name} {value}"
            raise UserError(topic, wanted, "cannot change while the query evolves", fix)
    before, after = plan(running), plan(new)
    for topic in ("latest", "debezium"):
        if getattr(new, topic):
            _refuse_other_key(old.name, topic, before, after)
    shared: SharedSources | None = None
    if start == STATE:
        refuse_other_logs(running, new)
        version, began = (old.shared.version, old.shared.start) if old.shared else (old.version, old.start)
        was_carried = old.shared is not None and old.shared.states is not None
        shared = SharedSources(version, began, states={} if must_carry_states(running, new, was_carried) else None)
    elif complete_from(new, start) is None:
        problem = "is too late: results depend on all rows ever, and would lack those before"
        raise UserError("--from", start, problem, f"write --from {EARLIEST}")
    number = old.versions + 1
    outputs = {**old.outputs, old.version: before.output.schema, number: after.output.schema}
    beside = Beside(number, new.dump(), start, shared=shared, joined=old.joined if shared is not None else None)
    return replace(old, revision=old.revision + 1, versions=number, beside=beside, outputs=outputs)


def claimed(
    old: QueryRecord,
    first_ids: Mapping[str, int],
    reach: Mapping[str, int],
    states: Mapping[str, tuple[str, int]] | None = None,
) -> QueryRecord:
    """The record with where the version beside begins, if that was not known; see `SharedSources`."""
    beside = old.beside
    if state_of(old) != CLAIMING or beside is None or beside.shared is None:
        return old
    shared = replace(beside.shared, first_ids=first_ids, reach=reach, states=states)
    return replace(old, revision=old.revision + 1, beside=replace(beside, shared=shared))


def complete_from(query: Query, start: str) -> int | None:
    """The event time (us) from which on results depend on no row from before the start; None if they always do. A row whose
    time is the start or later was written after it. start: see `resolve_start`; not 'state'."""
    made = plan(query)
    begins = BEGINNING if start == EARLIEST else time_us(start)
    return FragmentSpans(made).earliest({edge.name: begins for edge in made.sources})


def _refuse_other_key(query: str, topic: str, before: Plan, after: Plan) -> None:
    """UserError if rows of both versions would not have the same keys in a compacted topic."""
    types = [each.output.schema.visible for each in (before, after)]
    columns = before.output_key, after.output_key
    keys = [[f"{name} ({of[name]})" for name in key] or ["no key"] for of, key in zip(types, columns, strict=True)]
    if keys[0] == keys[1]:
        return
    problem = f"has the rows of {', '.join(keys[0])}, and would get those of {', '.join(keys[1])} beside them"
    fix = f"keep the key, or leave {query}.{topic} out first: boreal query set {query} {topic}=false"
    raise UserError(topic, True, problem, fix)


def roll_back(old: QueryRecord) -> QueryRecord:
    """The record with the version beside on its way to take over again; or, if that has never been in charge, on its way out.
    The same record if it is so already. UserError if there is nothing to roll back."""
    state, beside = state_of(old), old.beside
    if beside is None:
        raise UserError("NAME", old.name, "has one version only, and nothing to roll back to", "see boreal query show")
    if state in (ROLLING_BACK, LEAVING):
        return old
    if state == TAKING_OVER:
        fix = "wait a moment, until boreal query show says taken_over, and roll back then"
        raise UserError("NAME", old.name, "is being taken over by another version, which cannot be stopped", fix)
    if state in (CLAIMING, BUILDING):
        return replace(old, revision=old.revision + 1, beside=replace(beside, takes_over=False, leaves=True))
    return replace(old, revision=old.revision + 1, beside=replace(beside, takes_over=True))


def settle(old: QueryRecord) -> QueryRecord:
    """The record with the version beside on its way out. The same record if it is so already. UserError if it cannot go yet."""
    state, beside = state_of(old), old.beside
    if beside is None:
        raise UserError("NAME", old.name, "has one version only, and none before it to delete", "see boreal query show")
    if state == LEAVING:
        return old
    if state not in (TAKEN_OVER, ROLLED_BACK):
        fix = f"wait until it has taken over, or give it up: boreal query rollback {old.name}"
        raise UserError("NAME", old.name, f"is {str(state).replace('_', ' ')} with version {beside.version}", fix)
    return replace(old, revision=old.revision + 1, beside=replace(beside, leaves=True))


def let_go(old: QueryRecord) -> QueryRecord:
    """The record without the version that leaves, once nothing of that is left."""
    if state_of(old) != LEAVING:
        return old
    beside, outputs = old.beside, dict(old.outputs)
    assert beside is not None, "it leaves"
    if not _was_in_charge(old, beside):
        outputs.pop(beside.version, None)
    return replace(old, revision=old.revision + 1, beside=None, outputs=outputs)


def schemas(record: QueryRecord) -> dict[int, Schema]:
    """The columns of results by version, lowest first, of all versions that clients' topics may have rows of."""
    found = dict(record.outputs)
    for run in record.runs():
        if run.version not in found:
            found[run.version] = plan(run.query).output.schema
    return dict(sorted(found.items()))


def _was_in_charge(record: QueryRecord, beside: Beside) -> bool:
    return beside.version < record.version or beside.since is not None


def _propose(old: QueryRecord, to: int, at: int, agreed: bool) -> QueryRecord:
    return replace(old, revision=old.revision + 1, takeover=Takeover(to, at, agreed))


def _complete(old: QueryRecord, takeover: Takeover) -> QueryRecord:
    beside = old.beside
    assert beside is not None and beside.version == takeover.to, "only the version beside takes over"
    former = Beside(old.version, old.spec, old.start, takes_over=False, since=old.since, shared=old.shared, joined=old.joined)
    return replace(
        old,
        revision=old.revision + 1,
        spec=beside.spec,
        version=beside.version,
        start=beside.start,
        shared=beside.shared,
        joined=beside.joined,
        since=takeover.at,
        beside=former,
        takeover=None,
    )


# What the monitor does next


@dataclass(frozen=True, slots=True)
class EgressReport:
    """What the egress of a site says of itself."""

    version: int
    """The version whose rows it gives."""
    state: str | None
    """Its state."""
    through: int | None
    """The event time (us) that its stable results have reached; None before the first boundary."""
    takeover: Mapping[str, Any] | None
    """What it says of the takeover: see `logs.egress_switch`."""

    @staticmethod
    def of(status: Mapping[str, Any], heard_at: int, now: int) -> EgressReport:
        """As of `now`, from a status that was heard before. KeyError if the status is of another program."""
        through: int | None = status["through_us"]
        if through is not None:
            through = as_of(now, through, heard_at)
        return EgressReport(status["version"], status["state"], through, status["takeover"])


@dataclass(frozen=True, slots=True)
class VersionProgress:
    """How far a version is whose results nobody reads."""

    state: str
    """The worst state of its shards, each at its best replica."""
    position: int
    """The event time (us) that the results of all shards have reached."""
    starting: tuple[str, ...] = ()
    """Its Spark jobs that are not ready yet: without them its replicas wait."""


def as_of(now: int, position: int, heard_at: int) -> int:
    """Where event time is now that was heard to be at a position. All statuses come every second, each at a moment of its own:
    so positions in two of them differ by up to a second where the streams are at the same place."""
    return position + now - heard_at if 0 <= heard_at - position <= LIVE_US else position


class Evolution:
    """Drives the takeovers of one query. `waits_for`: what the next step waits for; '' if for nothing."""

    def __init__(self) -> None:
        self.waits_for = ""
        self._margin_us = MARGIN_US
        self._missed: Takeover | None = None
        self._asked: Takeover | None = None
        self._looks = 0
        self._complete_from: dict[int, int] = {}  # by version

    def next(
        self, record: QueryRecord, sites: Collection[str], egresses: Mapping[str, EgressReport], beside: VersionProgress | None
    ) -> QueryRecord | None:
        """The record that is to replace this one now; None if nothing is to be done yet. egresses: of the sites that are heard.
        beside: None if not all of it is heard."""
        self.waits_for = ""
        if record.beside is None or record.paused or not (record.beside.takes_over or record.takeover):
            self._margin_us = MARGIN_US
            return None
        if not record.beside.is_placed:
            return self._wait(f"what version {record.version} keeps of its streams")
        silent = sorted(set(sites) - egresses.keys())
        is_overdue = self._is_overdue(record.takeover)
        if silent:
            if is_overdue:
                return replace(record, revision=record.revision + 1, takeover=None)
            return self._wait(f"the egress of {', '.join(silent)}, which is not heard")
        if record.takeover is None:
            promising = sorted(site for site, each in egresses.items() if each.takeover is not None)
            if promising:  # what it said of that time must not count for another that is the same
                return self._wait(f"the egress of {', '.join(promising)}, which has not heard that a time was taken back")
            return self._begin(record, record.beside, egresses, beside)
        takeover = record.takeover
        if all(each.version == takeover.to for each in egresses.values()):
            return _complete(record, takeover)
        said = [each.takeover for each in egresses.values() if each.version != takeover.to]
        if not takeover.agreed or len(sites) == 1:
            about_this = [each for each in said if each is not None and each["at_us"] == takeover.at]
            has_missed = any(each["state"] == "missed" for each in about_this)
            if not has_missed and not takeover.agreed and len(about_this) == len(sites):
                return _propose(record, takeover.to, takeover.at, agreed=True)
            if has_missed or is_overdue:
                if takeover != self._missed:  # the same is asked again until the next time is written
                    self._missed, self._margin_us = takeover, min(2 * self._margin_us, MARGIN_US_MAX)
                return _propose(record, takeover.to, self._time(record, egresses), agreed=len(sites) == 1)
        return self._wait(f"results up to {moment(takeover.at)}")

    def _is_overdue(self, takeover: Takeover | None) -> bool:
        """Whether not all egresses have promised this takeover for too long. Counts a look at it."""
        if takeover is None or takeover.agreed:
            self._asked = None
            return False
        self._asked, self._looks = takeover, self._looks + 1 if takeover == self._asked else 1
        return self._looks * LOOK_US > self._margin_us

    def _begin(
        self, record: QueryRecord, beside: Beside, egresses: Mapping[str, EgressReport], progress: VersionProgress | None
    ) -> QueryRecord | None:
        unwell = sorted(site for site, each in egresses.items() if each.state != State.STABLE.value)
        if unwell:
            return self._wait(f"the egress of {', '.join(unwell)}, which is not stable")
        begins = [each.through for each in egresses.values() if each.through is None or each.through >= INFINITY]
        if begins:
            return self._wait("results" if None in begins else "streams that go on: they have ended")
        if progress is None:
            return self._wait(f"replicas of version {beside.version}, which are not heard")
        if progress.state != State.STABLE.value and progress.starting:
            return self._wait(f"{', '.join(progress.starting)} to start")
        if progress.state != State.STABLE.value:
            return self._wait(f"version {beside.version}, which is {progress.state}")
        if progress.position <= BEGINNING:
            return self._wait(f"the first results of version {beside.version}")
        behind = max(each.through or 0 for each in egresses.values()) - progress.position
        if behind > _may_lag(record.query, record.run(beside.version).query):
            return self._wait(f"version {beside.version}, which is {behind / 1e6:.1f} s of event time behind")
        at, complete = self._time(record, egresses), self._complete(record, beside)
        if at < complete:
            since = moment(max(beside.shared.reach.values())) if beside.shared is not None else beside.start
            return self._wait(f"results of {moment(complete)}: those before depend on rows from before {since}")
        return _propose(record, beside.version, at, agreed=len(egresses) == 1)

    def _complete(self, record: QueryRecord, beside: Beside) -> int:
        """The event time from which on the results of the version beside lack no row."""
        if beside.version not in self._complete_from:
            query = record.run(beside.version).query
            if beside.shared is None:
                found = complete_from(query, beside.start)
            elif beside.shared.states is not None:
                found = max(beside.shared.reach.values())
            else:
                found = FragmentSpans(plan(query)).earliest(beside.shared.reach)
            self._complete_from[beside.version] = INFINITY if found is None else found
        return self._complete_from[beside.version]

    def _time(self, record: QueryRecord, egresses: Mapping[str, EgressReport]) -> int:
        """The time of a takeover, later than the one before it: the beginning of a bucket of both versions."""
        bucket = lcm(*(run.query.intervals.bucket for run in record.runs()))
        ahead = max(each.through or 0 for each in egresses.values()) + self._margin_us
        if record.takeover is not None:
            ahead = max(ahead, record.takeover.at + 1)
        return -(-ahead // bucket) * bucket

    def _wait(self, what: str) -> QueryRecord | None:
        self.waits_for = what
        return None


def _may_lag(old: Query, new: Query) -> int:
    """How far behind the results of a version may be when it takes over (us)."""
    before, after = plan(old), plan(new)
    waits = after.bucket_us + after.boundary_interval_us + max(after.disorder_us - before.disorder_us, 0)
    return max(min(before.delay_threshold_us, after.delay_threshold_us) // LAG_SHARE, LAG_US) + waits


def progress_of(plan: Plan, entries: Collection[Mapping[str, Any]]) -> VersionProgress | None:
    """How far a version is, by what its instances say of themselves; None if a shard of its output is not heard."""
    writers = [
        fragment
        for fragment in plan.fragments
        if fragment.name != EGRESS and {edge.name for edge in fragment.outputs} & {e.name for e in plan.fragment(EGRESS).edges}
    ]
    best: list[tuple[int, int, str]] = []
    for fragment in writers:
        for shard in range(fragment.shards):
            of_shard = [
                (_RANKS.get(entry["state"], len(_RANKS)), -int(entry["position"]), str(entry["state"]))
                for entry in entries
                if (entry["fragment"], entry["shard"]) == (fragment.name, shard)
            ]
            if not of_shard:
                return None
            best.append(min(of_shard))
    if not best:
        return None
    return VersionProgress(max(best)[2], min(-position for _, position, _ in best))


_RANKS = {
    state.value: rank for rank, state in enumerate((State.STABLE, State.UP_FAILURE, State.STABILIZATION, State.RECOVERING))
}


def shown(record: QueryRecord, waits_for: str = "") -> dict[str, Any] | None:
    """The evolution as statuses and answers show it; None for a query with one version."""
    beside = record.beside
    if beside is None:
        return None
    return {
        "state": state_of(record),
        "version": beside.version,
        "from": beside.start,
        "at": moment(record.takeover.at) if record.takeover is not None else None,
        "waits_for": waits_for or None,
    }
