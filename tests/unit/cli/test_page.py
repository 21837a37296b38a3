"""compare.html: what it says of any runs, without a script and without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from embedded.compare_page import page
from embedded.faults import parse_fault

ALL = tuple(
    (mode, f"{failure}/{after}")
    for mode in ("checkpoint_redo", "undo_redo", "overlay_redo")
    for failure in ("process", "delay")
    for after in ("process", "delay", "suspend")
)
FAULTS = ("cut jfk at 3s for 5s", "crash main.r1 at 4s", "cut lga at 3.1s for 100ms", "freeze main.r1 at 9s for 1s")


def states(end_ms: float) -> list[dict[str, Any]]:
    spans = (
        ("r0", 0, "STABLE", 0.0, 3150.0),
        ("r0", 0, "UP_FAILURE", 3150.0, 8000.0),
        ("r0", 0, "STABILIZATION", 8000.0, 8000.0),
        ("r0", 0, "STABLE", 8000.0, end_ms),
        ("r1", 1, "STABLE", 0.0, 4000.0),
        ("r1", 1, "FAILURE", 4000.0, 9000.0),
        ("r1", 1, "RECOVERING", 9000.0, end_ms),
    )
    names = ("replica", "shard", "state", "from_ms", "to_ms")
    return [{"fragment": "main", **dict(zip(names, span, strict=True))} for span in spans]


def made(
    faults: Sequence[str] = (), combinations: Sequence[tuple[str, str]] = ALL[:1], end_ms: float = 10_000.0, **figures: Any
) -> str:
    """A page of one run for each (mode, policy). figures: what differs in every row of the table."""
    row = {
        "delay_new_ms_max": 900.132,
        "delay_new_ms_p99": 615.7,
        "violations": 0,
        "n_stable": 4112,
        "n_tentative": 877,
        "n_undone": 877,
        "reconcile_seconds": 0.0062,
        "checkpoint_bytes": 299,
        "consistent_after_seconds": 0.024,
        "is_stable": True,
        **figures,
    }
    table = [{"mode": mode, "policy": policy, **row} for mode, policy in combinations]
    runs = [{"x_ms": 1000.0, "notes": [], "states": states(end_ms)} for _ in combinations]
    return page("departures", [parse_fault(fault) for fault in faults], faults, runs, table)


def drawings(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def classed(drawing: ElementTree.Element, tag: str, name: str) -> list[ElementTree.Element]:
    return [part for part in drawing.iter(tag) if name in (part.get("class") or "").split()]


class Outline(HTMLParser):
    """Checks that what is opened is closed, in order, and counts elements."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("count", [1, 2, 7, 18])
def test_every_run_is_in_each_chart_the_table_and_the_strips(count: int) -> None:
    text = made(FAULTS, ALL[:count])
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    drawn = drawings(text)
    assert [len(classed(chart, "rect", "bar")) for chart in drawn[:3]] == [count] * 3
    assert len(drawn) == 3 + count
    assert len(re.findall('<th scope="row">', text)) == count
    assert (f"{count} runs over the same input" if count > 1 else "1 run,") in text


def test_it_needs_no_script_and_loads_nothing() -> None:
    text = made(FAULTS, ALL)
    assert not re.search(r"https?://|src=|href=|url\(|@import|<script|\son\w+=", text)
    assert "default-src 'none'" in text


def test_the_head_names_the_query_the_threshold_and_the_faults_in_order() -> None:
    text = made(FAULTS)
    assert "<title>departures: modes and policies compared</title>" in text
    assert "with these faults. Delay threshold X = 1 s." in text
    assert re.findall(r"<li>(.*?)</li>", text)[: len(FAULTS)] == list(FAULTS)
    assert "without faults" in made()
    assert "<ol" not in made()


def test_a_bar_that_crosses_x_says_so_and_the_line_is_where_x_is() -> None:
    crossing, keeping = drawings(made(delay_new_ms_max=2000.0))[0], drawings(made(delay_new_ms_max=500.0))[0]
    (bar,), (line,) = classed(crossing, "rect", "bar"), classed(crossing, "line", "limit")
    left, length = float(bar.get("x", "")), float(bar.get("width", ""))
    assert float(line.get("x1", "")) == pytest.approx(left + length / 2)
    assert classed(crossing, "text", "value")[0].text == "2.00 s > X"
    assert classed(crossing, "rect", "over") and not classed(keeping, "rect", "over")
    assert classed(keeping, "text", "value")[0].text == "500.0 ms"
    assert classed(keeping, "text", "limit")[0].text == "X = 1 s"


def test_what_there_was_none_of_has_a_word_and_no_bar() -> None:
    text = made(delay_new_ms_max=None, n_tentative=0, reconcile_seconds=None, checkpoint_bytes=None)
    charts = drawings(text)[:3]
    assert [classed(chart, "text", "value")[0].text for chart in charts] == ["none", "0", "none"]
    assert [float(classed(chart, "rect", "bar")[0].get("width", "")) for chart in charts] == [0, 0, 0]


def test_lateness_and_a_run_that_did_not_become_stable_stand_out() -> None:
    assert '<strong class="bad">' not in made()
    text = made(violations=32, is_stable=False)
    assert '<strong class="bad">32</strong>' in text
    assert '<strong class="bad">not stable</strong>' in text


def test_drawings_are_told_in_words() -> None:
    delays, *_, strip = drawings(made(FAULTS))
    assert all(drawing.get("role") == "img" for drawing in drawings(made(FAULTS)))
    assert delays.get("aria-label") == "Worst delay of a new result: checkpoint_redo process/process 900.1 ms"
    assert strip.get("aria-label", "").startswith(
        "States of checkpoint_redo process/process. main.r0: STABLE from 0.000 to 3.150 s, UP_FAILURE from 3.150 to 8.000 s"
    )
    assert all(part.find("title") is not None for part in strip.iter("rect"))


def test_a_moment_is_drawn_over_what_follows_it() -> None:
    (*_, strip) = drawings(made())
    kinds = [part.get("class") for part in strip.iter("rect")]
    (moment,) = classed(strip, "rect", "stabilization")
    assert kinds[-1] == "stabilization"
    assert (moment.get("x"), moment.get("width")) == ("80.00%", "3")


def test_faults_are_numbered_where_they_happen_and_never_over_each_other() -> None:
    (*_, strip) = drawings(made(FAULTS))
    marks = classed(strip, "rect", "fault")
    assert [(mark.get("x"), mark.get("width"), mark.get("y")) for mark in marks] == [
        ("30.00%", "50.00%", "2"),
        ("40.00%", "60.00%", "15"),
        ("31.00%", "3", "15"),
        ("90.00%", "10.00%", "2"),
    ]
    assert [mark.findtext("title") for mark in marks] == [f"{number}: {text}" for number, text in enumerate(FAULTS, 1)]
    assert [mark.text for mark in classed(strip, "text", "fault")] == ["1", "2", "3", "4"]


def test_the_legend_has_the_states_that_occur() -> None:
    legend = made(FAULTS).partition('<ul class="legend">')[2].partition("</ul>")[0]
    assert re.findall(r"</i>(.*?)</li>", legend) == [
        "STABLE",
        "UP_FAILURE",
        "STABILIZATION",
        "RECOVERING",
        "FAILURE (down)",
        "a fault, by its number",
    ]
    assert "a fault, by its number" not in made()


def test_names_are_text_and_never_markup() -> None:
    run = {"x_ms": 250.0, "notes": ["a <b> note"], "states": states(9000.0)}
    row = {"mode": "<m>", "policy": '"p"&', "delay_new_ms_max": None, "delay_new_ms_p99": None, "violations": 0}
    row |= {"n_stable": 1, "n_tentative": 0, "n_undone": 0, "reconcile_seconds": None, "checkpoint_bytes": None}
    row |= {"consistent_after_seconds": None, "is_stable": True}
    text = page("<q>", [parse_fault("stop a at 1s")], ["stop <a> at 1s"], [run], [row])
    assert not re.search(r"<q>|<m>|<a>|<b>", text)
    assert "X = 250 ms" in text
    assert len(drawings(text)) == 4


# Contrast


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_shapes_can_be_told_from_what_is_behind_them(theme: int) -> None:
    colours = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", made(), re.DOTALL)[theme]))
    for behind in ("paper", "card"):
        for text in ("ink", "soft", "over", "fault"):
            assert contrast(colours[text], colours[behind]) >= 4.5, (text, behind)
        for shape in ("bar", "over", "stable", "up_failure", "stabilization", "recovering", "failure", "fault"):
            assert contrast(colours[shape], colours[behind]) >= 3, (shape, behind)
