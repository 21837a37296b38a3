"""The session of `boreal run`, `compare` and `verify`: options and input, checked and read once, for any number of runs.

`make_session` takes the texts of the command line. Before anything is written, it refuses what cannot run, with the name of
the option. The `RunSession` then runs the same input and faults with any mode and policy.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import numpy as np

from boreal.model.durations import format_duration, parse_duration
from boreal.model.errors import UserError
from boreal.query.plan import Plan
from boreal.query.planner import Overrides, plan
from boreal.query.spec import LEAST_SLACK_US, Engine, Mode, Policy, Query, did_you_mean, load_query
from embedded import run_folder
from embedded.faults import Fault, check_faults, parse_fault
from embedded.file_sources import FileDeadLetter, SourceRows, read_source
from embedded.paced_sources import Pace
from embedded.recording import Recording
from embedded.run import Outcome, Run
from embedded.world import Clock, ModelClock, RealClock, SkipClock

ClockName = Literal["skip", "real"]
Watch = Callable[[Run], None]
Tap = Callable[[TextIO], TextIO]

DEFAULT_RATE = "10000/s"
_CLOCKS = ("skip", "real")
_RATE = re.compile(r"(?P<number>\d+(\.\d+)?)/s", re.ASCII)
_SPEED = re.compile(r"(?P<number>\d+(\.\d+)?)x", re.ASCII)
_LONGEST_BUCKET_US = 36_500 * 86_400_000_000
_OPTION_OF = {
    "reconcile": ("--mode", "mode"),
    "policy": ("--policy", "policy"),
    "delay_threshold": ("--delay-threshold", "delay_threshold_us"),
    "replicas": ("--replicas", "replicas"),
    "shards": ("--shards", "shards"),
    "engine": ("--engine", "engine"),
}
"""For each field of the query: the option that overrides it, and the name of the planner's parameter."""


@dataclass(frozen=True)
class RunSession:
    """A query with its input and faults, ready to run. `plan` is what the options ask for; `planned` varies it."""

    query: Query
    """The query."""
    overrides: Overrides
    """What the options override in the query."""
    notes: tuple[str, ...]
    """Notes on the pace, for the report."""
    plan: Plan
    """The plan with the overrides; `planned` makes plans with another mode or policy."""
    rows: dict[str, SourceRows]
    """The rows of each source stream that reaches the output."""
    pace: Pace | Recording
    """How fast the rows are logged; a recording says when each came."""
    faults: tuple[Fault, ...]
    """The faults, with times in microseconds of run time."""
    fault_texts: tuple[str, ...]
    """The faults, as the user wrote them."""
    clock: ClockName
    """'real': run in real time; 'skip': jump over idle time."""
    seed: int | None
    """The seed of the model of work and of generated input; None to measure the real time of work."""

    def planned(self, mode: Mode | None = None, policy: Policy | None = None) -> Plan:
        """The plan under another mode or policy, all else alike. UserError where the query does not allow the mode."""
        mode, policy = mode or self.plan.mode, policy or self.plan.policy
        made = plan(self.query, replace(self.overrides, mode=mode, policy=policy, bucket_us=self.plan.bucket_us))
        return replace(made, notes=(*made.notes, *self.notes))

    def without_faults(self) -> RunSession:
        return replace(self, faults=(), fault_texts=())

    @property
    def n_rows(self) -> int:
        return sum(rows.batch.num_rows for rows in self.rows.values())

    @property
    def dead_letters(self) -> list[FileDeadLetter]:
        return [letter for rows in self.rows.values() for letter in rows.rejects]

    def run(
        self,
        out: Path,
        *,
        data: Path | None = None,
        mode: Mode | None = None,
        policy: Policy | None = None,
        watch: Watch | None = None,
        tap: Tap | None = None,
    ) -> Outcome:
        """Run to the end, and write stable.jsonl, changes.jsonl, dlq.jsonl and, last, report.json to the folder `out`.

        The folder must exist and not contain these files. data: the folder for the files of logs and checkpoints, which stay;
        None to keep them in memory. UserError if it contains some. `watch(run)` is called several times per boundary
        interval. `tap(changes)` can return a wrapper of the changelog file, to show its records.
        """
        with ExitStack() as files:
            stable, changes, dead = (files.enter_context(run_folder.create(out / name)) for name in run_folder.STREAM_FILES)
            for letter in self.dead_letters:
                dead.write(json.dumps(asdict(letter)) + "\n")
            run = Run(
                self.planned(mode, policy),
                self.rows,
                self.pace,
                self.faults,
                self._new_clock(),
                *files.enter_context(run_folder.stores(data)),
                seed=self.seed,
                changes=tap(changes) if tap else changes,
                stable=stable,
                watch=watch,
            )
            outcome = run.go()
        run_folder.write_whole(out / run_folder.REPORT, json.dumps(outcome.report, indent=2) + "\n")
        return outcome

    def _new_clock(self) -> Clock:
        if self.clock == "real":
            return RealClock()
        return SkipClock() if self.seed is None else ModelClock()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a query is to be run, in the texts of the command line: rate "10000/s", speed "60x", policy "process/delay". None
    leaves what the query says, or the default."""

    faults: Sequence[str] = ()
    """The faults, as docs/query.md writes them."""
    rate: str | None = None
    """Rows per second, such as '10000/s'."""
    speed: str | None = None
    """How much faster than event time rows come, such as '60x'."""
    mode: str | None = None
    """How failures are reconciled."""
    policy: str | None = None
    """What each phase of a failure does, such as 'process/delay'."""
    delay_threshold: str | None = None
    """X, such as '3s'."""
    replicas: int | None = None
    """The number of replicas of each fragment."""
    shards: int | None = None
    """The number of shards of each fragment."""
    engine: str | None = None
    """What runs the operators."""
    clock: str = "skip"
    """'real' or 'skip': see `RunSession.clock`."""
    seed: int | None = None
    """The seed of the model of work and of generated input; None to measure the real time of work."""


PLAIN = RunOptions()


def make_session(source: Path | Mapping[str, Any], sources: Sequence[str], options: RunOptions = PLAIN) -> RunSession:
    """Check everything that a command was given, and read its sources, STREAM=PATH each. source: the query, as `load_query`
    takes it. UserError for the first thing that is wrong."""
    query = load_query(source)
    rate, speed, clock, seed = options.rate, options.speed, options.clock, options.seed
    if rate is not None and speed is not None:
        raise UserError("--speed", speed, f"cannot be used with --rate {rate}", "use only one of the two")
    pace = parse_pace(rate, speed)
    if clock not in _CLOCKS:
        raise UserError("--clock", clock, "is not a clock", f"write one of: {', '.join(_CLOCKS)}")
    if seed is not None and seed < 0:
        raise UserError("--seed", seed, "is less than zero", "write a whole number of at least 0")
    overrides = replace(_overrides(options), bucket_us=_bucket_at_speed(query, pace, speed))
    planned = _blaming_options(lambda: plan(query, overrides), overrides)
    _refuse_spark(query, planned)
    parsed = tuple(parse_fault(text) for text in options.faults)
    check_faults(parsed, planned)
    rows = _read_sources(query, planned, sources, seed or 0)
    bucket_us, notes = _fitted_to_rate(planned, rows, pace)
    if clock == "real" and seed is not None:
        notes += ("the seed applies only to generated input: a run in real time does not repeat exactly",)
    return RunSession(
        query=query,
        overrides=overrides,
        notes=notes,
        plan=replace(planned, bucket_us=bucket_us, notes=(*planned.notes, *notes)),
        rows=rows,
        pace=pace,
        faults=parsed,
        fault_texts=tuple(options.faults),
        clock=cast(ClockName, clock),
        seed=seed,
    )


def replay_session(spec: Mapping[str, Any], recording: Recording, bucket_us: int, options: RunOptions) -> RunSession:
    """The session of a replay: what was recorded is the input, at the pace at which it came. bucket_us: the length of a bucket
    in event time. UserError for the first thing that is wrong."""
    query = load_query(spec)
    overrides = replace(_overrides(options), bucket_us=bucket_us)
    planned = _blaming_options(lambda: plan(query, overrides), overrides)
    parsed = tuple(parse_fault(text) for text in options.faults)
    check_faults(parsed, planned)
    return RunSession(
        query=query,
        overrides=overrides,
        notes=recording.notes,
        plan=replace(planned, notes=(*planned.notes, *recording.notes)),
        rows={name: SourceRows(name, stream.batch, []) for name, stream in recording.streams.items()},
        pace=recording,
        faults=parsed,
        fault_texts=tuple(options.faults),
        clock="skip",
        seed=options.seed,
    )


def parse_mode(text: str, field: str) -> Mode:
    """The reconciliation mode with this name. UserError, with `field`, for any other text."""
    try:
        return Mode(text)
    except ValueError:
        raise UserError(field, text, "is not a mode", did_you_mean(text, Mode)) from None


def _overrides(options: RunOptions) -> Overrides:
    """What the options override in the query."""
    mode, policy, threshold = options.mode, options.policy, options.delay_threshold
    return Overrides(
        mode=None if mode is None else parse_mode(mode, "--mode"),
        policy=None if policy is None else Policy.parse(policy, "--policy"),
        delay_threshold_us=None if threshold is None else parse_duration(threshold, "--delay-threshold"),
        replicas=options.replicas,
        shards=options.shards,
        engine=cast(Engine | None, options.engine),
    )


def _blaming_options(make_plan: Callable[[], Plan], overrides: Overrides) -> Plan:
    """Make a plan. If the query refuses the value of an option, the error names the option instead of the field."""
    try:
        return make_plan()
    except UserError as error:
        option, override = _OPTION_OF.get(error.field, ("", ""))
        if not override or getattr(overrides, override) is None:
            raise
        raise replace(error, field=option) from None


def _refuse_spark(query: Query, planned: Plan) -> None:
    for fragment in planned.fragments:
        if "spark" in fragment.engines:
            named = (query.fragments or {}).get(fragment.name)
            raise UserError(
                f"fragments.{fragment.name}.engine" if named is not None and named.engine is not None else "engine",
                "spark",
                f"an embedded run has no Spark, but {fragment.name} uses it",
                "add --engine native, which has the same results, or run the query on a stack with boreal query apply",
            )


# Pace


def parse_pace(rate: str | None, speed: str | None) -> Pace:
    """The pace of --rate or --speed; without both, DEFAULT_RATE."""
    if speed is not None:
        return Pace(speed=_positive(_SPEED, "--speed", speed, "write the ratio of event time to run time, such as 60x"))
    return Pace(rate=_positive(_RATE, "--rate", rate or DEFAULT_RATE, "write tuples per second, such as 10000/s"))


def _positive(shape: re.Pattern[str], field: str, text: str, fix: str) -> float:
    match = shape.fullmatch(text.strip())
    number = float(match["number"]) if match else 0.0
    if match is None or not math.isfinite(number):
        raise UserError(field, text, "is not a valid value", fix)
    if number == 0:
        raise UserError(field, text, "is zero; the run would never end", fix)
    return number


def _bucket_at_speed(query: Query, pace: Pace, speed: str | None) -> int:
    """The bucket in microseconds of event time. With --speed, the file has it in run time, so that it works at any speed."""
    if pace.speed is None:
        return query.intervals.bucket
    bucket = round(query.intervals.bucket * pace.speed)
    if bucket > _LONGEST_BUCKET_US:
        most = _LONGEST_BUCKET_US // query.intervals.bucket
        raise UserError("--speed", speed, "makes a bucket longer than a hundred years", f"write at most {most}x")
    return max(bucket, 1)


def _fitted_to_rate(planned: Plan, rows: dict[str, SourceRows], pace: Pace) -> tuple[int, tuple[str, ...]]:
    """The bucket to run with, in microseconds of event time, and notes on it.

    At a low rate, a bucket may take more time to fill than X allows; a smaller one is used then. Results do not depend on the
    bucket (R5). Rows with the same event time cannot be divided; if these alone take too long, a note says so.
    """
    bucket = planned.bucket_us
    if pace.rate is None:
        return bucket, ()
    times = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *(source.times for source in rows.values())]))
    longest = (planned.delay_threshold_us - LEAST_SLACK_US) // 2 - planned.boundary_interval_us
    while _fill_us(times, bucket, pace.rate) > longest:
        if bucket == 1:
            took = _seconds(_fill_us(times, 1, pace.rate))
            return planned.bucket_us, (f"rows with the same event time take {took} at this rate, which is too long for X",)
        bucket //= 2
    if bucket == planned.bucket_us:
        return bucket, ()
    took = _seconds(_fill_us(times, planned.bucket_us, pace.rate))
    given = format_duration(planned.bucket_us)
    return bucket, (f"the bucket is {format_duration(bucket)}: a bucket of {given} would take {took} to fill at this rate",)


def _fill_us(times: np.ndarray, bucket_us: int, rate: float) -> float:
    """The longest time from the first to the last row of a bucket, in microseconds of run time."""
    if not len(times):
        return 0
    edges = np.flatnonzero(np.diff(times // bucket_us)) + 1
    most = np.diff(np.concatenate([[0], edges, [len(times)]])).max()
    return float(most - 1) / rate * 1e6


def _seconds(us: float) -> str:
    return f"{us / 1e6:.3g}s"


# Sources


def _read_sources(query: Query, planned: Plan, sources: Sequence[str], seed: int) -> dict[str, SourceRows]:
    """The rows of each stream that reaches the output, in the order of the query file, which settles ties."""
    where: dict[str, str] = {}
    for text in sources:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UserError("--source", text, "is not STREAM=PATH", f"write {next(iter(query.streams))}=PATH")
        if name not in query.streams:
            raise UserError("--source", text, f"there is no stream {name}", did_you_mean(name, query.streams))
        if name in where:
            raise UserError("--source", text, f"{name} already reads {where[name]}", f"write one source for {name}")
        where[name] = path
    reaching = {edge.operator for edge in planned.sources}
    needed = [name for name in query.streams if name in reaching]
    for name in needed:
        if name not in where:
            fix = f"add --source {name}=PATH, or {name}=generate:RATE,SECONDS"
            raise UserError("--source", None, f"the stream {name} has no source", fix)
    return {name: read_source(name, query.streams[name], where[name], seed) for name in needed}
