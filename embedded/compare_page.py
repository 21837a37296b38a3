"""compare.html: one self-contained page with charts as inline SVG, light or dark as the reader's system is set.

It has no scripts and loads no other files. Each colour is accompanied by a shape, a word or a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from embedded.faults import Fault

Row = dict[str, Any]

BAR_LEFT, BAR_WIDTH, VALUE_LEFT, PANEL_WIDTH, BAR_TOP, BAR_ROW, GROUP_ROW = 122, 140, 270, 340, 24, 22, 26
"""Sizes of a bar chart, in SVG units: the x of bars, the length of the longest bar, the x of numbers, the width of the chart;
the heights of the space above the rows, of a row, and of the heading of a mode."""
LANE, STRIP_ROW, AXIS = 13, 20, 20
"""Heights in a strip, in pixels: a lane of faults, the row of an instance, and the time axis. Widths are in percent, so that
text keeps its size at any width of the page."""
LANE_GAP = 6.0
"""The least distance between two faults in a lane, in percent of the width: space for the number of the second fault."""
STATES = {"STABLE": 6, "UP_FAILURE": 12, "STABILIZATION": 16, "RECOVERING": 12, "FAILURE": 12}
"""The height of each state, in pixels. FAILURE, an instance that is down, is also drawn hollow."""


def page(query: str, faults: Sequence[Fault], fault_texts: Sequence[str], runs: Sequence[Row], table: Sequence[Row]) -> str:
    """The page for the reports `runs` and their rows `table`, in the same order, with the runs of a mode together."""
    x_ms = runs[0]["x_ms"]
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs over the same input"
    afflicted = ("without faults", "with this fault")[len(faults)] if len(faults) < 2 else "with these faults"
    about = f"{count}, {afflicted}. Delay threshold X = {_threshold(x_ms)}."
    listed = "".join(f"<li>{escape(text)}</li>" for text in fault_texts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(query)}: modes and policies compared</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(query)}: modes and policies compared</h1>
<p>{about}</p>
{f'<ol class="faults" aria-label="Faults, numbered">{listed}</ol>' if listed else ""}
</header>
<section>
<h2>Delay, tentative tuples and reconciliation</h2>
<div class="panels">{_bars(table, x_ms)}</div>
</section>
<section>
<h2 id="figures">All figures</h2>
{_table(table)}
</section>
<section>
<h2>States over time</h2>
{_legend(runs, faults)}
{_strips(table, runs, faults, fault_texts)}
</section>
</main>
</body>
</html>
"""


# Bars


@dataclass(frozen=True)
class _Panel:
    """A bar chart with a bar for each run. `limit`: a line across all bars; bars beyond it are marked."""

    title: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    limit: float | None = None


def _bars(table: Sequence[Row], x_ms: float) -> str:
    panels = (
        _Panel("Worst delay of a new result", lambda row: row["delay_new_ms_max"], _seconds, x_ms),
        _Panel("Tentative tuples", lambda row: row["n_tentative"], _count),
        _Panel("Longest reconciliation", lambda row: _times(row["reconcile_seconds"], 1000), _seconds),
    )
    return "".join(_panel(panel, table) for panel in panels)


def _panel(panel: _Panel, table: Sequence[Row]) -> str:
    values = [panel.value(row) or 0.0 for row in table]
    scale = BAR_WIDTH / (max(*values, panel.limit or 0.0, 0.0) or 1.0)
    parts: list[str] = []
    told: list[str] = []
    y = BAR_TOP
    for mode, rows in groupby(table, key=lambda row: row["mode"]):
        parts.append(f'<text class="group" x="0" y="{y + 18}">{escape(mode)}</text>')
        y += GROUP_ROW
        for row in rows:
            value = panel.value(row)
            text = "none" if value is None else panel.text(value)
            over = value is not None and panel.limit is not None and value > panel.limit
            text += " > X" if over else ""
            told.append(f"{mode} {row['policy']} {text}")
            parts.append(_bar(row["policy"], text, (value or 0.0) * scale, "bar over" if over else "bar", y))
            y += BAR_ROW
    height = y + 4
    if panel.limit is not None:
        x = BAR_LEFT + panel.limit * scale
        # Drawn twice, first as a rim in the colour of the page, so that the line is visible on any bar.
        parts += [
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{BAR_TOP - 6}" y2="{height}"/>' for kind in ("rim", "limit")
        ]
        parts.append(f'<text class="limit" x="{x:.1f}" y="{BAR_TOP - 10}">X = {_threshold(panel.limit)}</text>')
    label = escape(f"{panel.title}: {'; '.join(told)}")
    box = f"0 0 {PANEL_WIDTH} {height}"
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>"
        f'<svg class="bars" viewBox="{box}" role="img" aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _bar(policy: str, text: str, length: float, kind: str, y: int) -> str:
    """A row: the policy, a bar on its track, and the number in a separate column."""
    # Small values above zero stay visible.
    width = max(length, 1.5) if length else 0
    return (
        f'<text x="10" y="{y + 15}">{escape(policy)}</text>'
        f'<rect class="track" x="{BAR_LEFT}" y="{y + 4}" width="{BAR_WIDTH}" height="14"/>'
        f'<rect class="{kind}" x="{BAR_LEFT}" y="{y + 4}" width="{width:.1f}" height="14"/>'
        f'<text class="value" x="{VALUE_LEFT}" y="{y + 15}">{text}</text>'
    )


# The table

_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("Delay, max", lambda row: _seconds(row["delay_new_ms_max"])),
    ("Delay, p99", lambda row: _seconds(row["delay_new_ms_p99"])),
    ("Late", lambda row: _flagged(_count(row["violations"]), row["violations"] > 0)),
    ("Stable", lambda row: _count(row["n_stable"])),
    ("Tentative", lambda row: _count(row["n_tentative"])),
    ("Undone", lambda row: _count(row["n_undone"])),
    ("Reconciliation", lambda row: _seconds(_times(row["reconcile_seconds"], 1000))),
    ("Checkpoint", lambda row: "–" if row["checkpoint_bytes"] is None else f"{_count(row['checkpoint_bytes'])} B"),
    ("Consistent after", lambda row: _seconds(_times(row["consistent_after_seconds"], 1000))),
    ("Ended", lambda row: "stable" if row["is_stable"] else _flagged("not stable", True)),
)
_NOTES = (
    "Delay: the time of a new result, from the arrival of the last available input that it needed. Corrections do not count. "
    "Late: new results with a delay longer than X. "
    "Stable, tentative, undone: tuples that the client received, and tuples that were revoked. Reconciliation, checkpoint: "
    "the largest of the run. Consistent after: the time from the end of the last fault until every replica is STABLE and "
    "the client has its last correction. –: none."
)


def _table(table: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Policy", *(name for name, _ in _COLUMNS)))
    groups = []
    for mode, rows in groupby(table, key=lambda row: row["mode"]):
        lines = [f'<tr class="group"><th scope="rowgroup" colspan="{len(_COLUMNS) + 1}"><span>{escape(mode)}</span></th></tr>']
        for row in rows:
            cells = "".join(f"<td>{text(row)}</td>" for _, text in _COLUMNS)
            lines.append(f'<tr><th scope="row">{escape(row["policy"])}</th>{cells}</tr>')
        groups.append(f"<tbody>{''.join(lines)}</tbody>")
    # The region can take the focus, so that the keyboard can scroll it on a narrow page.
    return (
        '<div class="wide" role="region" aria-labelledby="figures" tabindex="0">'
        f'<table aria-labelledby="figures" aria-describedby="notes"><thead><tr>{head}</tr></thead>{"".join(groups)}</table>'
        f'</div>\n<p class="notes" id="notes">{_NOTES}</p>'
    )


def _flagged(text: str, is_bad: bool) -> str:
    return f'<strong class="bad">{text}</strong>' if is_bad else text


# Strips


def _legend(runs: Sequence[Row], faults: Sequence[Fault]) -> str:
    """The legend: all states that occur in the runs, in the order of STATES."""
    seen = {span["state"] for run in runs for span in run["states"]}
    entries = [f'<li><i class="{state.lower()}"></i>{_spoken(state)}</li>' for state in STATES if state in seen]
    if faults:
        entries.append('<li><i class="fault"></i>a fault, by its number</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _strips(table: Sequence[Row], runs: Sequence[Row], faults: Sequence[Fault], fault_texts: Sequence[str]) -> str:
    # All strips have the same time axis, so that they can be compared.
    end_ms = max((span["to_ms"] for run in runs for span in run["states"]), default=0.0) or 1.0
    marks = _marks(faults, fault_texts, end_ms)
    groups = []
    for mode, pairs in groupby(zip(table, runs, strict=True), key=lambda pair: pair[0]["mode"]):
        strips = "".join(_strip(row, run, marks, end_ms) for row, run in pairs)
        groups.append(f'<h3>{escape(mode)}</h3>\n<div class="strips">{strips}</div>')
    return "\n".join(groups)


def _strip(row: Row, run: Row, marks: Sequence[_Mark], end_ms: float) -> str:
    """The states of a run over time: the faults, then a row for each instance."""
    instances = list(dict.fromkeys(_instance(span) for span in run["states"]))
    top = max(((mark.lane + 1) * LANE + 2 for mark in marks), default=0)
    bottom = top + len(instances) * STRIP_ROW
    ticks = "".join(_tick(second, end_ms, top, bottom) for second in _ticks(end_ms / 1000))
    # The longest first: short spans are drawn over the spans that follow them.
    spans = sorted(run["states"], key=lambda span: span["from_ms"] - span["to_ms"])
    drawn = "".join(_span(span, top + instances.index(_instance(span)) * STRIP_ROW, end_ms) for span in spans)
    faults = "".join(_drawn(mark, bottom) for mark in marks)
    names = "".join(f'<li title="{escape(name)}">{escape(name)}</li>' for name in instances)
    notes = "".join(f" <small>{escape(note)}</small>" for note in run["notes"])
    label = escape(f"States of {row['mode']} {row['policy']}. {_told(run['states'])}")
    return (
        f'<figure><figcaption>{escape(row["policy"])}{notes}</figcaption><div class="strip">'
        f'<ul class="names" aria-hidden="true" style="padding-top:{top}px">{names}</ul>'
        f'<svg height="{bottom + AXIS}" role="img" aria-label="{label}">{ticks}{drawn}{faults}</svg></div></figure>'
    )


def _instance(span: Row) -> str:
    shard = f".{span['shard']}" if span["shard"] else ""
    return f"{span['fragment']}.{span['replica']}{shard}"


def _told(spans: Iterable[Row]) -> str:
    """The text of the states, in seconds of run time."""
    return ". ".join(f"{name}: {', '.join(_told_span(span) for span in own)}" for name, own in groupby(spans, key=_instance))


def _told_span(span: Row) -> str:
    return f"{_spoken(span['state'])} from {span['from_ms'] / 1000:.3f} to {span['to_ms'] / 1000:.3f} s"


def _spoken(state: str) -> str:
    return "FAILURE (down)" if state == "FAILURE" else state


def _span(span: Row, y: int, end_ms: float) -> str:
    share = 100 * (span["to_ms"] - span["from_ms"]) / end_ms
    # Short spans stay visible.
    width = f"{share:.2f}%" if share > 1 else "3"
    height = STATES[span["state"]]
    return (
        f'<rect class="{span["state"].lower()}" x="{100 * span["from_ms"] / end_ms:.2f}%" y="{y + (STRIP_ROW - height) // 2}"'
        f' width="{width}" height="{height}"><title>{escape(_told([span]))}</title></rect>'
    )


@dataclass(frozen=True)
class _Mark:
    """A fault in the strips. start, stop: in percent of the width. lane: the first lane without an earlier fault here."""

    number: int
    text: str
    start: float
    stop: float
    lane: int


def _marks(faults: Sequence[Fault], texts: Sequence[str], end_ms: float) -> list[_Mark]:
    marks: list[_Mark] = []
    for number, (fault, text) in enumerate(zip(faults, texts, strict=True), start=1):
        end_us = math.inf if fault.for_us is None else fault.at_us + fault.for_us
        start, stop = (100 * min(at_us / 1000, end_ms) / end_ms for at_us in (fault.at_us, end_us))
        near = {mark.lane for mark in marks if start < mark.stop + LANE_GAP and mark.start < stop + LANE_GAP}
        lane = next(lane for lane in range(len(marks) + 1) if lane not in near)
        marks.append(_Mark(number, text, start, stop, lane))
    return marks


def _drawn(mark: _Mark, bottom: int) -> str:
    """The number of the fault, its bar in its lane, and lines through the states below at its start and end."""
    y = mark.lane * LANE
    share = mark.stop - mark.start
    width = f"{share:.2f}%" if share > 1 else "3"
    edges = [mark.start] if mark.stop >= 100 else [mark.start, mark.stop]
    lines = "".join(f'<line class="edge" x1="{x:.2f}%" x2="{x:.2f}%" y1="{y + 10}" y2="{bottom}"/>' for x in edges)
    return (
        f'{lines}<text class="fault" x="{mark.start:.2f}%" dx="-4" y="{y + 10}">{mark.number}</text>'
        f'<rect class="fault" x="{mark.start:.2f}%" y="{y + 2}" width="{width}" height="8">'
        f"<title>{mark.number}: {escape(mark.text)}</title></rect>"
    )


def _tick(second: float, end_ms: float, top: int, bottom: int) -> str:
    x = 100_000 * second / end_ms
    return (
        f'<line class="tick" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{bottom + 3}"/>'
        f'<text class="tick" x="{x:.2f}%" y="{bottom + 16}">{second:g} s</text>'
    )


def _ticks(end: float) -> list[float]:
    """About six round numbers of seconds, from 0."""
    rough = end / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * number, 9) for number in range(int(end / step) + 1)]


# Numbers


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _seconds(ms: float | None) -> str:
    """The text of a time in milliseconds, with about three digits and a suitable unit."""
    if ms is None:
        return "–"
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.1f} ms"


def _threshold(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _count(value: float) -> str:
    return f"{int(value):,}"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #55626f; --line: #d7dde3; --paper: #ffffff; --card: #f5f7f9;
  --bar: #3d74b8; --over: #b93d22; --stable: #2f8a69; --up_failure: #c27a0a; --stabilization: #2f6fc4;
  --recovering: #8659c9; --failure: #67727d; --fault: #b93d22; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf0; --soft: #a3b0bd; --line: #34404c; --paper: #12181f;
  --card: #1a222b; --bar: #6ea3e0; --over: #f58b73; --stable: #4fb38e; --up_failure: #f0b04a; --stabilization: #82b4f5;
  --recovering: #bba2ec; --failure: #8d99a5; --fault: #f58b73; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1140px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 12px; } h3 { font-size: 14px; margin: 18px 0 8px; }
p { margin: 4px 0; color: var(--soft); } p.notes { font-size: 13px; max-width: 110ch; margin-top: 10px; }
ol.faults { margin: 8px 0 0; padding-left: 28px; font: 13px/1.6 ui-monospace, monospace; overflow-wrap: anywhere; }
ol.faults ::marker { color: var(--fault); font-weight: 600; }
figure { margin: 0; } figcaption { font-size: 13px; font-weight: 600; margin-bottom: 6px; }
small { font-size: 12px; font-weight: 400; color: var(--soft); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 28px 40px; }
svg { display: block; width: 100%; overflow: visible; } svg.bars { max-width: 420px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .group { font-weight: 600; } svg .value { font-variant-numeric: tabular-nums; }
.track { fill: var(--card); } .bar { fill: var(--bar); } .over { fill: var(--over); }
svg line { stroke: var(--line); }
svg text.tick { fill: var(--soft); font-size: 11px; text-anchor: middle; }
svg line.rim { stroke: var(--paper); stroke-width: 4; }
svg line.limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 2; }
svg text.limit { font-weight: 600; text-anchor: middle; }
.stable { fill: var(--stable); background: var(--stable); }
.up_failure { fill: var(--up_failure); background: var(--up_failure); }
.stabilization { fill: var(--stabilization); background: var(--stabilization); }
.recovering { fill: var(--recovering); background: var(--recovering); }
.failure { fill: var(--card); stroke: var(--failure); border: 1px solid var(--failure); }
rect.fault { fill: var(--fault); } i.fault { background: var(--fault); }
svg text.fault { fill: var(--fault); font-size: 11px; font-weight: 600; text-anchor: end; }
svg line.edge { stroke: var(--fault); stroke-dasharray: 2 2; pointer-events: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
tr > th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
tbody th { font-weight: 400; padding-left: 18px; }
tr.group th { font-weight: 600; padding: 12px 8px 5px; } tr.group span { position: sticky; left: 8px; }
.bad { color: var(--over); }
.strips { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); gap: 14px; }
.strips figure { min-width: 0; padding: 10px 20px 6px 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.strip { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 14px; }
.names { margin: 0; padding: 0; list-style: none; font-size: 12px; line-height: 20px; min-width: 0; }
.names li { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
ul.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 0 0 12px; list-style: none; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; } .legend i { width: 14px; height: 12px; }
.legend i.stable { height: 6px; } .legend i.stabilization { height: 16px; } .legend i.fault { height: 8px; }
"""
