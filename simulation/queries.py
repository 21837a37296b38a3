"""Random small queries of every operator, in one fragment, a chain or a diamond.

Rows that have not yet met a window all have one shape (k, v, n), so that any operator can follow any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

SCHEMA = {"k": "string", "v": "double", "n": "int"}

_CONDITIONS = ("v > 10", "n is not null", "k <> 'k0'", "n > 1 and v is not null", "v < 40 or n = 3")
_COMPUTED = {
    "average": "avg(v)",
    "total": "sum(v)",
    "whole": "sum(n)",
    "least": "min(v)",
    "most": "max(v)",
    "spread": "stddev(v)",
    "kinds": "count(distinct n)",
    "opening": "first(v)",
    "closing": "last(n)",
    "key_least": "min(k)",
}


@dataclass(frozen=True)
class Menu:
    """Which operators may come. joins: those that wait for two sides; unbounded: distinct without a window; stateful:
    any whose results depend on more than one row."""

    joins: bool = True
    unbounded: bool = True
    stateful: bool = True


@dataclass
class Sketch:
    """Operators so far. blocks: those of each fragment-to-be."""

    rng: Random
    menu: Menu
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    blocks: list[list[str]] = field(default_factory=lambda: [[]])

    def add(self, kind: str, spec: dict[str, Any]) -> str:
        name = f"{kind}{len(self.operators)}"
        self.operators[name] = spec
        self.blocks[-1].append(name)
        return name


def make_operators(rng: Random, streams: list[str], shape: str, menu: Menu) -> tuple[Sketch, str]:
    """Operators over the streams, dealt to fragments as `shape` ('single', 'chain', 'diamond') says, and the output."""
    sketch = Sketch(rng, menu)
    if shape == "diamond":
        return sketch, _diamond(sketch, streams)
    name = _merge(sketch, streams, menu.joins)
    for _ in range(rng.randrange(3)):
        name = _row_operator(sketch, name)
    if shape == "chain":
        for _ in range(rng.choice((1, 1, 2))):
            sketch.blocks.append([])
            name = _row_operator(sketch, name)
    if menu.stateful and (name in streams or rng.random() < 0.8):
        name = _window_operator(sketch, name)
        if rng.random() < 0.3:
            if shape == "chain" and rng.random() < 0.5:
                sketch.blocks.append([])
            name = _after_window(sketch, name)
    return sketch, _row_operator(sketch, name) if name in streams else name


def _diamond(sketch: Sketch, streams: list[str]) -> str:
    rng, menu = sketch.rng, sketch.menu
    base = _merge(sketch, streams, False)
    if base in streams:
        base = _row_operator(sketch, base)
    arms = []
    for _ in range(2):
        sketch.blocks.append([])
        arms.append(_row_operator(sketch, base))
    sketch.blocks.append([])
    is_join = menu.joins and rng.random() < 0.4
    joined = _join(sketch, arms[0], arms[1]) if is_join else sketch.add("union", {"union": arms})
    return _window_operator(sketch, joined) if menu.stateful and rng.random() < 0.7 else joined


def _merge(sketch: Sketch, streams: list[str], allow_join: bool) -> str:
    """The streams as one: by a union, a join, or (of one stream) as it is."""
    rng = sketch.rng
    if len(streams) == 1:
        return streams[0]
    if allow_join and rng.random() < 0.3:
        rest = _merge(sketch, streams[1:], False)
        return _join(sketch, streams[0], rest)
    return sketch.add("union", {"union": list(streams)})


def _join(sketch: Sketch, left: str, right: str) -> str:
    rng = sketch.rng
    how = rng.choice(("inner", "left"))
    on = rng.choice((["k"], ["k"], ["k", "n"]))
    joined = sketch.add("join", {"join": [left, right], "on": on, "within": _ms(rng, 60, 300), "how": how})
    other = "coalesce(v_right, v)"
    return sketch.add("map", {"map": joined, "select": {"k": "k", "v": other, "n": "n"}})


def _row_operator(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    pick = rng.random() if sketch.menu.stateful else rng.uniform(0, 0.75)
    if pick < 0.4:
        return sketch.add("filter", {"filter": source, "where": rng.choice(_CONDITIONS)})
    if pick < 0.75:
        select = {"k": "k", "v": rng.choice(("v", "v / 3.0", "coalesce(v, 0.5) + n")), "n": rng.choice(("n", "n + 1"))}
        return sketch.add("map", {"map": source, "select": select})
    spec: dict[str, Any] = {"distinct": source, "on": rng.choice((["k"], ["k", "n"], ["k", "v"]))}
    if not sketch.menu.unbounded or rng.random() < 0.7:
        spec["window"] = {"tumbling": _ms(rng, 100, 700)}
    return sketch.add("distinct", spec)


def _window_operator(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    by = rng.choice((["k"], ["k"], ["k", "n"], []))
    if rng.random() < 0.25:
        spec = {"top": source, "k": rng.randint(1, 3), "order_by": rng.choice(("v desc", "n, v", "v"))}
        return sketch.add("top", {**spec, "window": {"tumbling": _ms(rng, 100, 600)}, "by": by})
    if rng.random() < 0.35:
        every = rng.randint(60, 250)
        window = {"sliding": f"{every * rng.choice((2, 3))}ms", "every": f"{every}ms"}
    else:
        window = {"tumbling": _ms(rng, 80, 700)}
    compute = {"c": "count(*)"}
    for column in rng.sample(sorted(_COMPUTED), rng.randint(0, 4)):
        compute[column] = _COMPUTED[column]
    return sketch.add("aggregate", {"aggregate": source, "window": window, "by": by, "compute": compute})


def _after_window(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    if "top" in sketch.operators[source]:
        return sketch.add("filter", {"filter": source, "where": "v > 3"})
    if rng.random() < 0.5:
        return sketch.add("filter", {"filter": source, "where": "c > 1"})
    return sketch.add(
        "aggregate",
        {"aggregate": source, "window": {"tumbling": _ms(rng, 300, 900)}, "compute": {"c": "count(*)", "sum_c": "sum(c)"}},
    )


def _ms(rng: Random, low: int, high: int) -> str:
    return f"{rng.randint(low, high)}ms"
