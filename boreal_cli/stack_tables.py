"""The output of the stack's commands on stdout, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from boreal_cli.timeline import STATE_STYLES
from services.stack.description import fix_for_nothing_up

_SOURCE_STYLES = {"live": "green", "idle": "dim", "spooling": "yellow", "failed": "red"}
_PROCESS_STYLES = {"running": "green", "starting": "yellow", "recovering": "yellow", "waiting": "red", "frozen": "red"}


def show_status(status: Mapping[str, Any], data: Path | None = None) -> None:
    """data: the directory of a local stack."""
    console = Console(highlight=False)
    if not status["processes"]:
        where = f" in {data}; {fix_for_nothing_up()}" if data else ""
        console.print(Text(f"nothing is up{where}"), soft_wrap=True)
        return
    if data:
        console.print(Text(f"Data      {data}"), soft_wrap=True)
    for site, address in status["kafka"].items():
        console.print(Text(f"Kafka {site}   {address}"))
    if status["redis"]:
        console.print(Text(f"Redis     {status['redis']}"))
    if status["api"]:
        console.print(Text(f"API       {status['api']}"))
    has_workers = any(process["worker"] for process in status["processes"])
    table = _table("process", "state", "restarts", "pid or worker" if has_workers else "pid")
    for process in status["processes"]:
        state = Text(process["state"], style=_PROCESS_STYLES.get(process["state"], "dim"))
        table.add_row(process["name"], state, str(process["restarts"] or "-"), str(process["pid"] or process["worker"] or "-"))
    console.print(table)
    if status.get("workers"):
        workers = _table("worker", "site", "host", "boreal", "roles")
        for worker in status["workers"]:
            workers.add_row(worker["name"], worker["site"], worker["host"], worker["program"], str(worker["roles"]))
        console.print(workers)
        for worker in status["workers"]:
            if worker["problem"]:
                console.print(Text(f"worker {worker['name']}: {worker['problem']}", style="red"), soft_wrap=True)
    if status.get("sources"):
        sources = _table("stream", "state", "boundary", "rows", "lag", "refused", "ahead", "clamped", "coerced")
        for name, source in status["sources"].items():
            spooled = f" {_amount(_megabytes(source['spooled_bytes']), ' MB')}" if source["spooled_bytes"] else ""
            state = Text(f"{source['state'] or '-'}{spooled}", style=_SOURCE_STYLES.get(source["state"], ""))
            boundary = (source["last_boundary"] or "-").partition(".")[0]
            rows, *kinds = (_amount(source.get(field), "") for field in ("rows", "ahead", "clamped", "coerced"))
            sources.add_row(name, state, boundary, rows, _lag(source), _refused(source), *kinds)
        console.print(sources)
        for name, source in status["sources"].items():
            if source.get("waits_for"):
                console.print(Text(f"{name} waits for {source['waits_for']}", style="red"), soft_wrap=True)
            if source.get("last_refusal"):
                console.print(Text(f"last refusal of {name}: {source['last_refusal']}", style="yellow"), soft_wrap=True)
    if status.get("answers"):
        console.print(_answers(status["answers"]))
        for name, found in status["answers"].items():
            _print_records_wait(console, name, found)
    if status.get("jobs"):
        jobs = _table("Spark job", "last batch", "rows per second", "state", "rebuilt", "memory", "start")
        for name, job in status["jobs"].items():
            jobs.add_row(name, *(_amount(*fact) for fact in _job_facts(job)))
        console.print(jobs)
    for name, problem in status["problems"].items():
        console.print(Text(f"query {name} does not run in full: {problem}", style="red"))
    for warning in status.get("clock", ()):
        console.print(Text(f"clock of {warning['process']}: {warning['text']}", style="yellow"), soft_wrap=True)
    ready = Text("ready", style="green") if status["ready"] else Text("not ready", style="red")
    console.print(ready + Text(f"; queries: {', '.join(status['queries']) or 'none'}", style="default"))


def show_change(name: str, command: str, found: Mapping[str, Any]) -> None:
    """What a query would change. command: the one that creates it. found: as REST answers to /validate."""
    console = Console(highlight=False)
    change = found["change"]
    for note in found["notes"]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    if change is None:
        console.print(Text(f"{name} is valid, and does not run: {command}"), soft_wrap=True)
        return
    if change["parts"]:
        table = _table("part", "runs", "file", "taken")
        for part in change["parts"]:
            table.add_row(part["part"], _value(part["before"]), _value(part["after"]), part["taken"].replace("_", " "))
        console.print(table)
    for line in change["says"]:
        console.print(Text(line), soft_wrap=True)
    if change["refused"] is not None:
        refused = change["refused"]
        value = "" if refused["value"] is None else f" {refused['value']!r}"
        console.print(
            Text(f"not now: {refused['field']}{value}: {refused['problem']}; {refused['fix']}", style="red"), soft_wrap=True
        )
    elif change["command"] is not None:
        console.print(Text(change["command"]), soft_wrap=True)


def _value(value: object) -> str:
    return "-" if value is None else json.dumps(value)


def _answers(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    """How queries answer. The last column is there where a query has an objective."""
    with_budget = any(found.get("slo") for found in answers.values())
    budget = ("budget left",) if with_budget else ()
    table = _table("query", "state", "X", "delay p50", "p99", "longest", "late", "tentative", "memory", "cores", *budget)
    for name, found in answers.items():
        delays = (_amount(found["delay_ms"][field], " ms") for field in ("p50", "p99", "max"))
        resources = found["resources"] or {}
        cores = "-" if resources.get("cores") is None else f"{resources['cores']:.2f}"
        facts = (
            *(_amount(found["x_ms"], " ms"), *delays, _amount(found["violations"], "")),
            *(_share(found["tentative_share"], 2), _amount(_megabytes(resources.get("memory_bytes")), " MB"), cores),
        )
        # The budget of late rows and that of tentative time are spent apart: what matters is the smaller rest.
        slo = found.get("slo")
        left = min(slo[kind]["budget_left"] for kind in ("results", "time")) if slo else None
        state = Text(found["state"], style=STATE_STYLES.get(found["state"], ""))
        table.add_row(name, state, *facts, *([_share(left, 0)] if with_budget else []))
    return table


def _share(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def _lag(stream: Mapping[str, Any]) -> str:
    """How many records of its topic a stream has not taken, and for how long there have been such."""
    records, lasts_ms = stream.get("lag_records"), stream.get("lag_ms")
    return f"{_amount(records, '')}{f' for {lasts_ms / 1_000:,.1f} s' if records and lasts_ms is not None else ''}"


def _job_facts(job: Mapping[str, Any]) -> list[tuple[float | None, str]]:
    """Amounts with their units; None for values that a new job does not have yet."""
    shards, memory = job["shards"] or (), job["rss_bytes"] or {}
    state = sum(shard["state_bytes"] + shard["versions_bytes"] for shard in shards) if shards else None
    rebuilds = sum(shard["rebuilds"] for shard in shards) if shards else None
    start = sum(job["start_s"].values()) if job["start_s"] else None
    return [
        (job["batch_ms"], " ms"),
        (job["rows_per_s"], ""),
        (_megabytes(state), " MB"),
        (rebuilds, ""),
        (_megabytes(sum(filter(None, memory.values())) or None), " MB"),
        (start, " s"),
    ]


def _refused(stream: Mapping[str, Any]) -> str:
    """How many dead letters a stream has, and how many of them came within the last minute, if any."""
    lately = stream.get("dlq_per_minute")
    return f"{_amount(stream.get('dlq'), '')}{f' ({lately:,}/min)' if lately else ''}"


def _megabytes(amount: int | None) -> float | None:
    return None if amount is None else amount / 1e6


def _amount(amount: float | None, unit: str) -> str:
    return "-" if amount is None else f"{amount:,.0f}{unit}"


def show_queries(queries: Sequence[Mapping[str, Any]]) -> None:
    console = Console(highlight=False)
    if not queries:
        console.print(Text("there are no queries; add one with: boreal query apply FILE"))
        return
    table = _table("query", "X", "mode", "policy", "replicas", "")
    for query in queries:
        paused = "paused" if query["paused"] else ""
        facts = (query["name"], query["delay_threshold"], query["reconcile"], query["policy"], str(query["replicas"]), paused)
        table.add_row(*facts)
    console.print(table)


def show_query(summary: Mapping[str, Any], how: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=None, width=120).rstrip()))
    if summary["paused"]:
        console.print(Text(f"paused, revision {summary['revision']}", style="dim"))
        return
    table = _table("replica", "state")
    for name, state in how["states"].items():
        table.add_row(name, Text(state, style=STATE_STYLES.get(state, "")))
    console.print(table)
    if (evolution := how.get("evolution")) is not None:
        at = f", from {evolution['at']} on" if evolution["at"] else ""
        waits_for = f"; waits for {evolution['waits_for']}" if evolution["waits_for"] else ""
        state = f"{evolution['state'].replace('_', ' ')}{at}{waits_for}"
        line = f"version {summary['version']} is in charge, version {evolution['version']} beside it: {state}"
        console.print(Text(line))
    if how["streams"]:
        streams = _table("stream", "state", "rows", "lag", "refused", "coerced", "last refusal")
        for name, found in how["streams"].items():
            counts = (_amount(found["rows"], ""), _lag(found), _refused(found), _amount(found.get("coerced"), ""))
            state = Text(found["state"] or "-", style=_SOURCE_STYLES.get(found["state"], ""))
            streams.add_row(name, state, *counts, Text(found["last_refusal"] or "-"))
        console.print(streams)
        for name, found in how["streams"].items():
            if found.get("waits_for"):
                console.print(Text(f"{name} waits for {found['waits_for']}", style="red"))
    if how["state"] is not None:
        console.print(_answers({summary["name"]: how}))
    _print_records_wait(console, summary["name"], how)
    if how["frozen"]:
        console.print(Text(f"stopped by a signal: {', '.join(how['frozen'])}", style="red"))
    if how["missing_inputs"]:
        console.print(Text(f"without {', '.join(how['missing_inputs'])}", style="yellow"))
    if how["problem"] or how["waits_for"]:
        console.print(Text(how["problem"] or f"waits for {', '.join(how['waits_for'])}", style="red"))
    console.print(Text(f"{'live' if how['live'] else 'not live'}, revision {summary['revision']}"))


def _print_records_wait(console: Console, query: str, how: Mapping[str, Any]) -> None:
    """Why the topic of records with schemas stands still, while all others go on."""
    if how.get("records_wait_for"):
        console.print(Text(f"{query}.records waits for {how['records_wait_for']}", style="red"), soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
