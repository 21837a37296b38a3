"""The results of commands on stdout, as tables and text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from boreal_cli.timeline import timeline

if TYPE_CHECKING:
    from embedded.compare import Comparison
    from embedded.run import Outcome
    from embedded.session import RunSession
    from embedded.verify import Difference, Verdict


def milliseconds(value: float | None) -> str:
    """The text of a duration in milliseconds, with a suitable unit."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} µs"
    return f"{value:,.1f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


def count(value: float | None) -> str:
    return "-" if value is None else f"{int(value):,}"


def show_run(outcome: Outcome, session: RunSession, out: Path) -> None:
    report = outcome.report
    console = Console(highlight=False)
    table = Table(title=f"{report['query']}: {report['mode']}, {report['policy']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("stable", f"{count(report['n_stable'])} tuples")
    table.add_row("tentative", f"{count(report['n_tentative'])} tuples, {count(report['n_undone'])} undone")
    table.add_row("delay of new results", _delay(report))
    if report["n_dlq"]:
        table.add_row("dead letters", f"{count(report['n_dlq'])} (see dlq.jsonl for the reasons)")
    if report["n_clamped"]:
        table.add_row("late rows", f"{count(report['n_clamped'])} moved to the last boundary")
    for entry in report["reconciliations"]:
        where = f"{entry['fragment']}.{entry['replica']}.{entry['shard']}"
        told = f"at {milliseconds(entry['started_ms'])} for {milliseconds(entry['seconds'] * 1000)}, "
        told += f"{count(entry['tuples_redone'])} tuples redone, checkpoint {count(entry['checkpoint_bytes'])} B"
        table.add_row(f"reconciled {where}", told)
    console.print(table)
    console.print(timeline(report, session.faults, session.fault_texts))
    for note in report["notes"]:
        console.print(Text(f"note: {note}", style="dim"))
    if not outcome.is_stable:
        console.print(Text("not every replica ended STABLE", style="bold red"))
    console.print(Text(f"written to {out}"))


def _delay(report: Mapping[str, Any]) -> str:
    if report["delay_new_ms_max"] is None:
        return "no results"
    told = f"at most {milliseconds(report['delay_new_ms_max'])}, p99 {milliseconds(report['delay_new_ms_p99'])}"
    late = f"; {count(report['violations'])} later than X" if report["violations"] else ""
    return f"{told}; X = {milliseconds(report['x_ms'])}{late}"


def show_comparison(comparison: Comparison, out: Path) -> None:
    console = Console(highlight=False)
    console.print(comparison_table(comparison))
    for note in comparison.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"written to {out}: open {out / 'compare.html'}"))


def comparison_table(comparison: Comparison) -> Table:
    """A table with a row for each run, grouped by mode."""
    x_ms = comparison.runs[0]["x_ms"]
    table = Table(
        title=f"{comparison.query}: {'; '.join(comparison.faults) or 'no faults'}",
        caption=f"delay: the longest of a new result; X is {milliseconds(x_ms)}. settled: time since the end of the last fault",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for name in ("delay", "tentative", "undone", "redo", "checkpoint", "settled"):
        table.add_column(name, justify="right", no_wrap=True)
    for mode, rows in groupby(comparison.table, key=lambda row: row["mode"]):
        table.add_row(Text(mode, style="bold"))
        for row in rows:
            table.add_row(*_comparison_cells(row, x_ms))
    return table


def _comparison_cells(row: Mapping[str, Any], x_ms: float) -> tuple[str | Text, ...]:
    late = row["delay_new_ms_max"] is not None and row["delay_new_ms_max"] > x_ms
    settled = milliseconds(_ms(row["consistent_after_seconds"]))
    return (
        f"  {row['policy']}",
        Text(milliseconds(row["delay_new_ms_max"]), style="red" if late else ""),
        count(row["n_tentative"]),
        count(row["n_undone"]),
        milliseconds(_ms(row["reconcile_seconds"])),
        "-" if row["checkpoint_bytes"] is None else f"{count(row['checkpoint_bytes'])} B",
        settled if row["is_stable"] else Text("not stable", style="red"),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


NOTHING_COMPARED = 3
"""Exit status of `boreal verify` where neither side has a row: it is no error, and shows nothing either."""


def verify_status(holds: bool, rows: int) -> int:
    """The exit status of `boreal verify`. rows: how many there are on the side that has more."""
    return 1 if not holds else 0 if rows else NOTHING_COMPARED


def show_verdict(verdict: Verdict) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if verdict.first_difference is None and not verdict.rows:
        console.print(Text("nothing was compared: there is no stable row, with or without the faults", style="yellow"))
    elif verdict.first_difference is None:
        console.print(Text(f"same: {count(verdict.rows)} stable rows, with and without the faults", style="green"))
    else:
        _show_difference(console, "the stable outputs differ", verdict.first_difference, "without faults", "with faults")
    for run, found in verdict.replay.items():
        _show_difference(console, f"{run}, the replayed changelog differs from stable.jsonl", found, "replayed", "stable.jsonl")
    if not verdict.is_stable:
        console.print(Text("not every replica ended STABLE", style="bold red"))
    faulted = verdict.runs[1]
    told = f"{count(faulted['n_tentative'])} tentative tuples, {count(faulted['n_undone'])} undone; {_delay(faulted)}"
    console.print(Text(f"with faults: {told}"))


def _show_difference(console: Console, what: str, found: Difference, left: str, right: str) -> None:
    console.print(Text(f"{what}; the first difference is in line {found.line}:", style="bold red"))
    width = max(len(left), len(right))
    for name, line in ((left, found.left), (right, found.right)):
        console.print(Text(f"  {name:<{width}}  {line if line is not None else '(no such line)'}"))


def show_campaign(result: Mapping[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    struck = ", ".join(f"{kind} {number:,}" for kind, number in result["faults"].items())
    seeds = f"{count(result['seeds'])} seeds, starting with {result['first']}"
    console.print(Text(f"{seeds}, in {result['seconds']:.1f}s; faults: {struck}"))
    for found in result["violations"]:
        console.print(Text(f"seed {found['seed']}: {found['invariant']}: {found['message']}", style="red"))
    if result["violations"]:
        console.print(Text(f"repeat the first one with: boreal simulate --seeds 1 --seed {result['violations'][0]['seed']}"))
    else:
        console.print(Text("no invariant was violated", style="green"))
