"""What a changed file would change of the query that runs, how that is taken, and what its clients would notice. Pure.

part of the query                                       how a change of it is taken
─────────────────────────────────────────────────────────────────────────────────────
delay_threshold, slo                                    at once
reconcile, policy, replicas, engine                     replicas restart, one after the other
late, ahead, idle, types, lacking of a stream           its source restarts
tuning, latest, debezium, records                       processes of the query restart together: sources for
                                                        what they read of tuning, the others for all
the rest of streams; operators, output, shards,         another version takes over
fragments, spark                                        (`deployment.evolution`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import plan
from boreal.query.spec import Query
from deployment.evolution import EARLIEST, complete_from, evolve
from deployment.query_record import CHANGED_IN_TURN, CHANGED_LIVE, STRUCTURE, TAKEN_BY_SOURCES, QueryRecord, with_bucket
from deployment.recompute import FragmentSpans
from deployment.shared_sources import STATE
from formats.json_text import moment
from sunion.tape import BEGINNING

NOTHING = "nothing"
AT_ONCE = "at_once"
IN_TURN = "in_turn"
SOURCES = "sources"
RESTART = "restart"
EVOLUTION = "evolution"
_WEIGHTS = (NOTHING, AT_ONCE, IN_TURN, SOURCES, RESTART, EVOLUTION)

_AN_END_OF_WINDOWS_US = 20_160 * 86_400_000_000
"""A time at which windows of most lengths end: it is a multiple of 1 to 10 days and weeks."""


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part of the query that the file has otherwise."""

    part: str
    """Its path in the file, such as `operators.each.compute.most`."""
    before: object
    """What runs; None where it is new."""
    after: object
    """What the file says; None where it goes."""
    taken: str
    """How the change is taken: AT_ONCE, IN_TURN, SOURCES, RESTART or EVOLUTION."""


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column of the results that comes, goes, or gets another type."""

    name: str
    """Its name."""
    before: str | None
    """Its type in the rows of the query that runs; None where it is new."""
    after: str | None
    """Its type in the rows to come; None where it goes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What runs beside the query until the version before is deleted."""

    sources: int
    """Sources: one for each stream; none for a version that reads the logs of the one that runs."""
    nodes: int
    """Nodes: one for each replica."""
    jobs: int
    """Spark jobs."""
    instances: int
    """Shards of replicas of fragments."""
    history_us: int | None
    """About how far rows reach back, in event time, that a result depends on; None if it depends on all rows ever."""


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """What to apply a file would mean for the query of its name."""

    taken: str
    """How the change as a whole is taken: NOTHING, or as the part that takes most."""
    parts: tuple[PartChange, ...]
    """The parts that differ."""
    columns: tuple[ColumnChange, ...]
    """The columns of the results that differ."""
    keys: tuple[tuple[str, ...], tuple[str, ...]] | None
    """The key columns of the results, before and after; None if they stay."""
    start: str
    """For an evolution: from where the new version would read."""
    needs: Needs | None
    """For an evolution: what it takes."""
    complete_from: int | None
    """For an evolution: the event time (us) from which on its results lack no row from before `start`; None from the earliest
    on."""
    refusal: UserError | None
    """Why not even an evolution is possible now."""

    @property
    def command(self) -> str | None:
        """The command that does it; None where nothing changes, or nothing does it."""
        if self.taken == NOTHING or self.refusal is not None:
            return None
        return f"boreal query apply FILE --evolve --from {self.start}" if self.taken == EVOLUTION else "boreal query apply FILE"

    def clients(self) -> list[str]:
        """What clients notice, a sentence each."""
        said = [_said_of_column(each) for each in self.columns]
        if self.keys is not None:
            before, after = (", ".join(key) or "nothing" for key in self.keys)
            said.append(f"the key of rows is {after}, and not {before}")
        if self.taken != EVOLUTION:
            return said
        if not said and any(each.part.partition(".")[0] in ("streams", "operators", "output") for each in self.parts):
            said.append("the columns stay; the values may be others")
        return said or ["the rows stay as they are"]

    def lines(self) -> list[str]:
        """All of it in sentences, without the parts."""
        if self.taken != EVOLUTION or self.needs is None:
            return [_HOW[self.taken]]
        needs = self.needs
        jobs = f", {_count(needs.jobs, 'Spark job')}" if needs.jobs else ""
        history = (
            "all rows ever" if needs.history_us is None else f"rows of the {format_duration(needs.history_us)} before them"
        )
        held = {EARLIEST: "all that the topics hold", STATE: "what the version that runs keeps of its streams"}.get(
            self.start, f"what was written since {self.start}"
        )
        return [
            _HOW[EVOLUTION],
            *(f"clients, from the takeover on: {said}" for said in self.clients()),
            f"it would read {held}; results depend on {history}",
            *(
                [f"it would take over at {moment(self.complete_from)} of event time or later: before, its results lack rows"]
                if self.complete_from is not None
                else []
            ),
            f"until the version before is deleted, it runs beside it: {_count(needs.sources, 'source')}, "
            f"{_count(needs.nodes, 'node')}{jobs} ({_count(needs.instances, 'instance')}), with logs of their own",
        ]

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        needs, refusal = self.needs, self.refusal
        return {
            "taken": self.taken,
            "parts": [
                {"part": each.part, "before": each.before, "after": each.after, "taken": each.taken} for each in self.parts
            ],
            "columns": [{"name": each.name, "before": each.before, "after": each.after} for each in self.columns],
            "key": None if self.keys is None else {"before": list(self.keys[0]), "after": list(self.keys[1])},
            "from": self.start if self.taken == EVOLUTION else None,
            "needs": None
            if needs is None
            else {
                "sources": needs.sources,
                "nodes": needs.nodes,
                "jobs": needs.jobs,
                "instances": needs.instances,
                "history_ms": None if needs.history_us is None else needs.history_us / 1_000,
            },
            "says": self.lines(),
            "command": self.command,
            "refused": None if refusal is None else refusal.to_dict(),
        }


_HOW = {
    NOTHING: "the query runs as the file says",
    AT_ONCE: "taken at once: nothing restarts",
    IN_TURN: "replicas restart one after the other; with two of them, clients are answered meanwhile",
    SOURCES: "sources of the streams restart; rows wait in their topics meanwhile",
    RESTART: "replicas and egresses restart together, and sources for what they read of tuning; rows wait meanwhile",
    EVOLUTION: "apply alone refuses it: another version is built beside the query, and takes over at an event time",
}


def preview(record: QueryRecord, wanted: Query, start: str = EARLIEST) -> ChangePreview:
    """What it would mean to apply a query whose name is that of one that runs. wanted: with its engine. start: from where a new
    version would read, as `deployment.evolution.resolve_start` returns it.
    UserError if it could not run."""
    running = record.query
    parts = tuple(_parts(running, wanted))
    is_other = any(each.taken == EVOLUTION for each in parts)
    after = with_bucket(wanted, None if is_other and start != STATE else running)
    taken = max((each.taken for each in parts), key=_WEIGHTS.index, default=NOTHING)
    plans = plan(running), plan(after)
    keys = plans[0].output_key, plans[1].output_key
    needs, complete, refusal = None, None, None
    if is_other:
        needs = _needs(plans[1], has_sources=start != STATE)
        complete = None if start in (EARLIEST, STATE) else complete_from(after, start)
        try:
            evolve(record, after, start)
        except UserError as error:
            refusal = error
    other_keys = keys if keys[0] != keys[1] else None
    return ChangePreview(taken, parts, _columns(*plans), other_keys, start, needs, complete, refusal)


def refuse_other_structure(record: QueryRecord, wanted: Query) -> None:
    """UserError if the query can only run as another version of the one that runs: it says what that would change."""
    if not any(each.taken == EVOLUTION for each in _parts(record.query, wanted)):
        return
    found = preview(record, wanted)
    first, *others = (each for each in found.parts if each.taken == EVOLUTION)
    more = f" (nor can {', '.join(each.part for each in others)})" if others else ""
    problem = f"is not what {record.name} runs with, and cannot change while it runs{more}. As another version: "
    fix = f"{found.refusal.problem}; {found.refusal.fix}" if found.refusal is not None else "apply the file with --evolve"
    raise UserError(
        first.part,
        first.after,
        problem + "; ".join(found.clients()),
        f"{fix} (boreal query validate FILE says more), or give the new query another name",
    )


def _parts(running: Query, wanted: Query) -> Iterator[PartChange]:
    """The parts that differ, as deep as both are mappings."""

    def below(path: tuple[str, ...], before: object, after: object) -> Iterator[PartChange]:
        if before == after:
            return
        if isinstance(before, Mapping) and isinstance(after, Mapping) and _is_same_kind(path, before, after):
            for name in dict.fromkeys((*before, *after)):
                yield from below((*path, str(name)), before.get(name), after.get(name))
        else:
            yield PartChange(".".join(path), before, after, _how_taken(path))

    before, after = running.dump(), wanted.dump()
    if wanted.tuning.bucket is None:
        after["tuning"]["bucket"] = before["tuning"].get("bucket")  # left to the program, which keeps it (`with_bucket`)
    yield from below((), before, after)


def _is_same_kind(path: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Operators of two kinds have nothing in common that is worth comparing. Their first key is their kind."""
    return len(path) != 2 or path[0] != "operators" or next(iter(before)) == next(iter(after))


def _how_taken(path: Sequence[str]) -> str:
    if path[0] == "streams" and len(path) > 2 and path[2] in TAKEN_BY_SOURCES:
        return SOURCES
    if path[0] in STRUCTURE:
        return EVOLUTION
    if path[0] in CHANGED_LIVE:
        return AT_ONCE
    return IN_TURN if path[0] in CHANGED_IN_TURN else RESTART


def _columns(before: Plan, after: Plan) -> tuple[ColumnChange, ...]:
    old, new = ({name: kind.value for name, kind in each.output.schema.columns} for each in (before, after))
    names = dict.fromkeys((*old, *new))
    return tuple(ColumnChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def _needs(wanted: Plan, has_sources: bool) -> Needs:
    fragments = [fragment for fragment in wanted.fragments if fragment.name != EGRESS]
    replicas = {replica for fragment in fragments for replica in fragment.replicas}
    in_spark = {r for f in fragments for r in f.replicas if f.engine_of(r) == "spark"}
    # The last bucket of its windows depends on the most.
    last = _AN_END_OF_WINDOWS_US - wanted.bucket_us
    begins = min(FragmentSpans(wanted).needs(last).values())
    return Needs(
        len({edge.operator for edge in wanted.sources}) if has_sources else 0,
        len(replicas),
        len(in_spark),
        sum(len(fragment.replicas) * fragment.shards for fragment in fragments),
        None if begins <= BEGINNING else _AN_END_OF_WINDOWS_US - begins,
    )


def _said_of_column(change: ColumnChange) -> str:
    if change.before is None:
        return f"column {change.name} ({change.after}) comes"
    if change.after is None:
        return f"column {change.name} ({change.before}) goes"
    return f"column {change.name} becomes {change.after}, and is {change.before}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
