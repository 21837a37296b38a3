"""compare.html: one self-contained page, light or dark as the reader's system is, with charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from services.faults import Fault

Row = dict[str, Any]

LABELS, PANEL, GAP, BAR_ROW, GROUP_ROW, TOP = 190, 240, 28, 22, 26, 46
"""Of the bar charts, in SVG units: the column of labels, a panel and the gap beside it, rows, and the titles above."""
STRIP_LABELS, STRIP_WIDTH, STRIP_ROW, STRIP_TOP = 84, 520, 18, 24


def page(query: str, faults: Sequence[Fault], fault_texts: Sequence[str], runs: Sequence[Row], table: Sequence[Row]) -> str:
    """The page for reports `runs` and the rows of `table` that belong to them, in the same order."""
    x_ms = runs[0]["x_ms"]
    strips = "".join(_strip(line, run, faults) for line, run in zip(table, runs, strict=True))
    listed = "".join(f"<li>{escape(text)}</li>" for text in fault_texts)
    about = f"{len(runs)} runs over the same input, {'with the same faults' if faults else 'without faults'}"
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(query)}: modes and policies compared</title>
<style>{_STYLE}</style>
<main>
<header>
<h1>{escape(query)}</h1>
<p>{about}; delay threshold X = {_seconds(x_ms)}.</p>
{f'<ol class="faults">{listed}</ol>' if listed else ""}
</header>
<section>
<h2>Delay, tentative tuples and reconciliation</h2>
<div class="wide">{_bars(table, x_ms)}</div>
</section>
<section>
<h2>All figures</h2>
<div class="wide">{_table(table)}</div>
</section>
<section>
<h2>States over time</h2>
{_LEGEND}
<div class="strips">{strips}</div>
</section>
</main>
</html>
"""


# Bars


@dataclass(frozen=True)
class _Panel:
    """A bar for each run. `limit`: a line across all bars, which longer ones are marked for crossing."""

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
    groups = [(mode, list(rows)) for mode, rows in groupby(table, key=lambda row: row["mode"])]
    height = TOP + len(groups) * GROUP_ROW + len(table) * BAR_ROW + 8
    width = LABELS + len(panels) * (PANEL + GAP)
    body: list[str] = []
    places: list[tuple[Row, float]] = []
    y = float(TOP)
    for mode, rows in groups:
        body.append(f'<text class="group" x="0" y="{y + 18}">{escape(mode)}</text>')
        y += GROUP_ROW
        for row in rows:
            body.append(f'<text x="12" y="{y + 15}">{escape(row["policy"])}</text>')
            places.append((row, y))
            y += BAR_ROW
    for number, panel in enumerate(panels):
        body.append(_panel(panel, places, LABELS + number * (PANEL + GAP), height))
    label = "Bar charts, one bar a run: " + "; ".join(panel.title.lower() for panel in panels)
    return f'<svg class="bars" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(body)}</svg>'


def _panel(panel: _Panel, places: Sequence[tuple[Row, float]], left: int, height: float) -> str:
    values = [panel.value(row) or 0.0 for row, _ in places]
    # A quarter of the panel stays free, for the number at the longest bar's end.
    scale = 0.75 * PANEL / (max(*values, panel.limit or 0.0, 0.0) or 1.0)
    parts = [f'<text class="title" x="{left}" y="16">{escape(panel.title)}</text>']
    for row, y in places:
        value = panel.value(row)
        if value is None:
            parts.append(f'<text class="none" x="{left + 4}" y="{y + 15}">none</text>')
            continue
        over = panel.limit is not None and value > panel.limit
        length = max(value * scale, 1.0)
        text = panel.text(value) + (" > X" if over else "")
        parts.append(
            f'<rect class="{"bar over" if over else "bar"}" x="{left}" y="{y + 4}" width="{length:.1f}" height="14" rx="2">'
            f"<title>{escape(row['mode'])} {escape(row['policy'])}: {text}</title></rect>"
            f'<text class="value" x="{left + length + 5:.1f}" y="{y + 15}">{text}</text>'
        )
    if panel.limit is not None:
        x = left + panel.limit * scale
        parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}"/>')
        parts.append(f'<text class="limit" x="{x:.1f}" y="{TOP - 10}">X = {_seconds(panel.limit)}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{left}" y1="{TOP - 2}" y2="{height}"/>')
    return "".join(parts)


# The table

_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("delay max", lambda row: _seconds(row["delay_new_ms_max"])),
    ("delay p99", lambda row: _seconds(row["delay_new_ms_p99"])),
    ("late", lambda row: _count(row["violations"])),
    ("stable", lambda row: _count(row["n_stable"])),
    ("tentative", lambda row: _count(row["n_tentative"])),
    ("undone", lambda row: _count(row["n_undone"])),
    ("reconciliation", lambda row: _seconds(_times(row["reconcile_seconds"], 1000))),
    ("checkpoint", lambda row: "–" if row["checkpoint_bytes"] is None else f"{_count(row['checkpoint_bytes'])} B"),
    ("consistent after", lambda row: _seconds(_times(row["consistent_after_seconds"], 1000))),
    ("ended", lambda row: "stable" if row["is_stable"] else "not stable"),
)


def _table(table: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("mode", "policy", *(name for name, _ in _COLUMNS)))
    lines = []
    for row in table:
        cells = "".join(f"<td>{text(row)}</td>" for _, text in _COLUMNS)
        lines.append(f'<tr><th scope="row">{escape(row["mode"])}</th><td>{escape(row["policy"])}</td>{cells}</tr>')
    caption = (
        "Late: new results that took longer than X. Consistent after: from the end of the last fault until every replica "
        "is STABLE and the client has its last correction."
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


# Strips


def _strip(row: Row, run: Row, faults: Sequence[Fault]) -> str:
    """A run's states over time: a row for each instance, with a band for each fault behind them."""
    instances = list(dict.fromkeys(_instance(span) for span in run["states"]))
    end = max((span["to_ms"] for span in run["states"]), default=1.0) or 1.0
    scale = STRIP_WIDTH / end
    bottom = STRIP_TOP + len(instances) * STRIP_ROW
    parts = [_tick(second, scale, bottom) for second in _ticks(end / 1000)]
    for place, name in enumerate(instances):
        parts.append(f'<text x="0" y="{STRIP_TOP + place * STRIP_ROW + 13}">{escape(name)}</text>')
    for span in run["states"]:
        parts.append(_span(span, STRIP_TOP + instances.index(_instance(span)) * STRIP_ROW, scale))
    parts += [_band(number, fault, scale, end, bottom) for number, fault in enumerate(faults, start=1)]
    title = f"{escape(row['mode'])} <b>{escape(row['policy'])}</b>"
    label = escape(f"States of {row['mode']} {row['policy']}: {_told(run['states'])}")
    box = f"0 0 {STRIP_LABELS + STRIP_WIDTH + 24} {bottom + 22}"
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="{box}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg></figure>"
    )


def _instance(span: Row) -> str:
    shard = f".{span['shard']}" if span["shard"] else ""
    return f"{span['fragment']}.{span['replica']}{shard}"


def _told(spans: Iterable[Row]) -> str:
    return "; ".join(
        f"{_instance(span)} {span['state']} from {_seconds(span['from_ms'])} to {_seconds(span['to_ms'])}" for span in spans
    )


def _span(span: Row, y: float, scale: float) -> str:
    left = STRIP_LABELS + span["from_ms"] * scale
    # What lasts a millisecond is still to be seen.
    width = max((span["to_ms"] - span["from_ms"]) * scale, 1.5)
    return (
        f'<rect class="{span["state"].lower()}" x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="12">'
        f"<title>{escape(_told([span]))}</title></rect>"
    )


def _band(number: int, fault: Fault, scale: float, end_ms: float, bottom: float) -> str:
    start = min(fault.at_us / 1000, end_ms)
    stop = end_ms if fault.for_us is None else min((fault.at_us + fault.for_us) / 1000, end_ms)
    left, width = STRIP_LABELS + start * scale, max((stop - start) * scale, 1.0)
    return (
        f'<rect class="fault" x="{left:.1f}" y="{STRIP_TOP - 6}" width="{width:.1f}" height="{bottom - STRIP_TOP + 8}"/>'
        f'<text class="fault" x="{left + 2:.1f}" y="{STRIP_TOP - 10}">{number}</text>'
    )


def _tick(second: float, scale: float, bottom: float) -> str:
    x = STRIP_LABELS + second * 1000 * scale
    return (
        f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{STRIP_TOP}" y2="{bottom + 3}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">{second:g}s</text>'
    )


def _ticks(end: float) -> list[float]:
    """Round seconds from 0 on, about six of them."""
    rough = end / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [round(step * number, 9) for number in range(int(end / step) + 1)]


# Numbers


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _seconds(ms: float | None) -> str:
    if ms is None:
        return "–"
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1000:.4g} s"


def _count(value: float) -> str:
    return f"{int(value):,}".replace(",", "\u202f")


_LEGEND = """<ul class="legend">
<li><i class="stable"></i>STABLE</li><li><i class="up_failure"></i>UP_FAILURE</li>
<li><i class="stabilization"></i>STABILIZATION</li><li><i class="recovering"></i>RECOVERING</li>
<li><i class="failure"></i>FAILURE: down</li>
<li><i class="fault"></i>a fault, by its number above</li>
</ul>"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5b6875; --line: #d7dde3; --paper: #ffffff; --card: #f5f7f9;
  --bar: #3d74b8; --over: #c2452d; --stable: #3f9c7a; --up_failure: #e09a26; --stabilization: #4b86d1;
  --recovering: #8d6cc8; --failure: #8a94a0; --fault: #c2452d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4eaf0; --soft: #97a5b3; --line: #34404c; --paper: #12181f;
  --card: #1a222b; --bar: #6ea3e0; --over: #f07f66; --stable: #4fb38e; --up_failure: #f0b04a; --stabilization: #74a8ec;
  --recovering: #ae92e0; --failure: #6b7783; --fault: #f07f66; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; margin: 0; } h2 { font-size: 18px; margin: 40px 0 12px; } p { margin: 4px 0; color: var(--soft); }
ol.faults { margin: 8px 0 0; padding-left: 22px; font: 13px/1.6 ui-monospace, monospace; }
.wide { overflow-x: auto; } svg { display: block; width: 100%; } svg.bars { min-width: 760px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .group, svg .title { font-weight: 600; font-size: 13px; } svg .value, svg .none { fill: var(--soft); font-size: 11px; }
svg .bar { fill: var(--bar); } svg .over { fill: var(--over); } svg .axis, svg .tick { stroke: var(--line); }
svg text.tick { stroke: none; fill: var(--soft); font-size: 10px; text-anchor: middle; }
svg line.limit { stroke: var(--over); stroke-dasharray: 4 3; }
svg text.limit { fill: var(--over); font-size: 11px; text-anchor: middle; }
svg .stable { fill: var(--stable); } svg .up_failure { fill: var(--up_failure); }
svg .stabilization { fill: var(--stabilization); } svg .recovering { fill: var(--recovering); }
svg .failure { fill: var(--failure); }
svg rect.fault { fill: var(--fault); fill-opacity: .16; stroke: var(--fault); stroke-opacity: .5; pointer-events: none; }
svg text.fault { fill: var(--fault); font-size: 11px; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: 8px; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
th:first-child, tbody td:nth-child(2), thead th:nth-child(2) { text-align: left; } tbody th { font-weight: 500; }
.strips { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
figcaption { font-size: 13px; margin-bottom: 4px; }
ul.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 0 0 12px; list-style: none; font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; vertical-align: -1px; }
i.stable { background: var(--stable); } i.up_failure { background: var(--up_failure); }
i.stabilization { background: var(--stabilization); } i.recovering { background: var(--recovering); }
i.failure { background: var(--failure); }
i.fault { background: color-mix(in srgb, var(--fault) 16%, transparent); border: 1px solid var(--fault); }
"""
