"""The upper part of a scenario's file: what is run, and what of it is told.

    # Comments say what the scenario shows.
    query: counts                      a query file of this folder
    options: {replicas: 2}             what the scenario has otherwise than the query file
    rows: {a: every 100ms until 3s}    by stream; several are a list
    faults: [cut b at 1s for 400ms]    as `boreal run --fault` takes them; each of them heals
    observe: [a, main.r0, client]      streams, replicas and the client

Rows are `every D [from T] until T`, each in the middle of its interval, or `one of T at T`: an event time, and when it is
logged. Run time and event time both begin at 0. A further fault, `drag FRAGMENT.rN by D at T for D`, is a slow machine: each
piece of its work takes D longer. `step_rows: N` lets a replica hand on only about N rows in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from boreal.model.durations import parse_duration
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import plan
from boreal.query.spec import load_query
from embedded.faults import Fault, check_faults, parse_fault
from reconcile.events import InstanceId
from simulation.feed import StreamFeed
from simulation.scenario import Scenario
from simulation.strikes import Strike

FOLDER = Path(__file__).parent

_EVERY = re.compile(r"every (?P<every>\S+)(?: from (?P<since>\S+))? until (?P<until>\S+)")
_ONE = re.compile(r"one of (?P<time>\S+) at (?P<at>\S+)")
_DRAG = re.compile(r"drag (?P<fragment>[^\s.]+)\.(?P<replica>\S+) by (?P<by>\S+) at (?P<at>\S+) for (?P<for>\S+)")

_microseconds = partial(parse_duration, allow_zero=True)


@dataclass(frozen=True)
class Script:
    """scenario: what is run. faults: (when it begins, when it heals, what it is). observe: which names are told of."""

    scenario: Scenario
    faults: tuple[tuple[int, int, str], ...]
    observe: frozenset[str]


def read_script(text: str) -> Script:
    """What a script says. UserError for a query or a fault that is none, ValueError for rows or a place that are none."""
    given = yaml.safe_load(text)
    made = _plan(given["query"], given.get("options", {}))
    known = {"client", *given["rows"], *(f"{part.name}.{replica}" for part in made.fragments for replica in part.replicas)}
    if not known.issuperset(given["observe"]):
        raise ValueError(f"observe: choose from {', '.join(sorted(known))}")
    faults = [(fault.partition(" at ")[0], _strikes(fault, made)) for fault in given.get("faults", [])]
    rows = {name: [texts] if isinstance(texts, str) else texts for name, texts in given["rows"].items()}
    scenario = Scenario(
        seed=0,
        family="story",
        plan=made,
        feeds=_feeds(rows, made),
        start_us=0,
        strikes=tuple(strike for _, strikes in faults for strike in strikes),
        skews={},
        step_rows=given.get("step_rows"),
    )
    spans = tuple((strikes[0].at_us, strikes[0].end_us, name) for name, strikes in faults)
    return Script(scenario, spans, frozenset(given["observe"]))


def _plan(name: str, options: Mapping[str, Any]) -> Plan:
    query = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return plan(load_query({**query, **options}))


# Rows


def _feeds(rows: Mapping[str, Iterable[str]], made: Plan) -> dict[str, StreamFeed]:
    """All streams end together, with the last row of any."""
    logged = {name: sorted(row for text in texts for row in _rows(text)) for name, texts in rows.items()}
    interval_us = made.boundary_interval_us
    length = max(at for each in logged.values() for at, _ in each) // interval_us + 1
    feeds = {}
    for edge in made.sources:
        mine = logged[edge.operator]
        columns = {"time": [time for _, time in mine], **{name: list(range(len(mine))) for name, _ in edge.schema.columns}}
        counts = tuple(sum(at < n * interval_us for at, _ in mine) for n in range(length + 1))
        feeds[edge.operator] = StreamFeed(pa.RecordBatch.from_pydict(columns, schema=edge.schema.arrow), counts)
    return feeds


def _rows(text: str) -> Iterable[tuple[int, int]]:
    """(when logged, event time) of each."""
    if match := _EVERY.fullmatch(text):
        every, until = _microseconds(match["every"], "rows"), _microseconds(match["until"], "rows")
        times = range(_microseconds(match["since"] or "0s", "rows") + every // 2, until, every)
        return zip(times, times, strict=True)
    if match := _ONE.fullmatch(text):
        return [(_microseconds(match["at"], "rows"), _microseconds(match["time"], "rows"))]
    raise ValueError(f"rows are `every D [from T] until T` or `one of T at T`, not {text!r}")


# Faults


def _strikes(text: str, made: Plan) -> list[Strike]:
    """The simulator's strikes that a fault comes to."""
    if match := _DRAG.fullmatch(text):
        by, at, length = (_microseconds(match[name], "faults") for name in ("by", "at", "for"))
        return [Strike("drag", at, length, who=InstanceId(match["fragment"], match["replica"], 0), amount=by)]
    fault = parse_fault(text)
    check_faults([fault], made)
    if fault.for_us is None:
        raise ValueError(f"{text}: give it an end, for a scenario ends when all has healed")
    span = fault.at_us, fault.for_us
    match fault.kind:
        case "cut_stream" if fault.to_replica:
            return [Strike("cut_stream_to_replica", *span, fault.stream, reader) for reader in _readers(fault, made)]
        case "cut_stream":
            return [Strike("cut_stream", *span, fault.stream)]
        case "cut_replica":
            return [Strike("cut_replica", *span, f"{fault.fragment}.{fault.replica}")]
        case "slow":
            return [Strike("slow", *span, fault.stream or f"{fault.fragment}.{fault.replica}", amount=fault.by_us)]
        case kind:
            kind = "crash_losing_checkpoint" if fault.losing_checkpoint else kind
            shards = range(made.fragment(fault.fragment).shards)
            return [Strike(kind, *span, who=InstanceId(fault.fragment, fault.replica, shard)) for shard in shards]


def _readers(fault: Fault, made: Plan) -> list[str]:
    return [
        f"{fragment.name}.{fault.to_replica}"
        for fragment in made.fragments
        if fault.fragment in ("", fragment.name)
        and fragment.name != EGRESS
        and any(edge.operator == fault.stream for edge in fragment.edges)
    ]
