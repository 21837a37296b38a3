"""Random small queries of every operator, in one fragment, a chain or a diamond.

Before a window all rows have the same columns (k, v, n, t, b; in some queries also d, w, a), so that any operator can follow
any other. The expressions, and what they mean, are in `simulation.expressions`, and in `simulation.exact` those of decimals and
dates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from simulation import exact
from simulation.expressions import COMPUTED, CONDITIONS, ESTIMATED, SELECTED
from simulation.own_operators import NEWEST, TOTALS

PANE_MS = 20
SCHEMA = {"k": "string", "v": "double", "n": "int", "t": "timestamp", "b": "bool"}

@dataclass(frozen=True)
class Menu:
    """The operators that may be drawn."""

    joins: bool = True
    """Joins, which wait for two sides."""
    unbounded: bool = True
    """Distinct without a window, sessions of any length, lookups of rows of any age."""
    stateful: bool = True
    """All whose results depend on more than one row."""
    recent: bool = False
    """The operators that came after the seeds of the other families were drawn."""
    own: bool = False
    """Operators of installed packages, estimates and deletes in the tables of lookups, which came later still."""
    exact: bool = False
    """Columns of decimals and dates, in most places where a column is drawn."""
    grid_ms: int = 1
    """All windows are multiples of this, in milliseconds, so that rows on the same grid lie on their edges."""

    @property
    def schema(self) -> dict[str, str]:
        """The columns of every stream."""
        return SCHEMA | exact.SCHEMA if self.exact else SCHEMA


@dataclass
class Sketch:
    """A query that is being drawn."""

    rng: Random
    """The source of all choices."""
    menu: Menu
    """The operators that may be drawn."""
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The specifications of the operators so far, by name."""
    blocks: list[list[str]] = field(default_factory=lambda: [[]])
    """The operators of each fragment."""

    def add(self, kind: str, spec: dict[str, Any]) -> str:
        name = f"{kind}{len(self.operators)}"
        self.operators[name] = spec
        self.blocks[-1].append(name)
        return name


def make_operators(rng: Random, streams: list[str], shape: str, menu: Menu) -> tuple[Sketch, str]:
    """Draw operators over the streams, divided into fragments by `shape` ('single', 'chain', 'diamond'); with the output's
    name."""
    sketch = Sketch(rng, menu)
    if shape == "diamond":
        return sketch, _diamond(sketch, streams)
    name = _merge(sketch, streams, menu.joins)
    for _ in range(rng.randrange(3)):
        name = _row_operator(sketch, name)
    if rng.random() < 0.15:
        # A union inside a fragment, of two results whose rows have the same times.
        name = sketch.add("union", {"union": [_row_operator(sketch, name), _row_operator(sketch, name)]})
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
    """Two arms over one base, which may be a stream that both read; or one arm over all streams, and one over the first."""
    rng, menu = sketch.rng, sketch.menu
    is_lopsided = len(streams) > 1 and rng.random() < 0.25
    base = _merge(sketch, streams, False)
    if base in streams and rng.random() < 0.3:
        base = _row_operator(sketch, base)
    arms = []
    for source in (base, streams[0] if is_lopsided else base):
        sketch.blocks.append([])
        arms.append(_row_operator(sketch, source))
    sketch.blocks.append([])
    is_join = menu.joins and rng.random() < 0.4
    joined = _join(sketch, arms[0], arms[1]) if is_join else sketch.add("union", {"union": arms})
    return _window_operator(sketch, joined) if menu.stateful and rng.random() < 0.7 else joined


def _merge(sketch: Sketch, streams: list[str], allow_join: bool) -> str:
    """Merge the streams: by a union or a join; a single stream stays as it is, or is joined with itself."""
    rng = sketch.rng
    if sketch.menu.recent and sketch.menu.joins and allow_join and rng.random() < 0.4:
        rest = _merge(sketch, streams[1:], False) if len(streams) > 1 else _row_operator(sketch, streams[0])
        return _lookup(sketch, streams[0], rest)
    if len(streams) == 1:
        name = streams[0]
        if allow_join and sketch.menu.joins and rng.random() < 0.3:
            return _join(sketch, name, rng.choice((name, _row_operator(sketch, name))))
        return name
    if allow_join and rng.random() < 0.3:
        rest = _merge(sketch, streams[1:], False)
        return _join(sketch, streams[0], rest)
    return sketch.add("union", {"union": list(streams)})


def _lookup(sketch: Sketch, left: str, table: str) -> str:
    rng = sketch.rng
    on = _joined(sketch)
    spec: dict[str, Any] = {"lookup": [left, table], "on": on, "how": rng.choice(("inner", "left"))}
    if not sketch.menu.unbounded or rng.random() < 0.7:
        spec["within"] = _ms(sketch, 60, 700)
    if sketch.menu.own and "b" not in on and rng.random() < 0.6:
        spec["deleted"] = "b"
    return _with_own_columns(sketch, sketch.add("lookup", spec), on)


def _join(sketch: Sketch, left: str, right: str) -> str:
    rng = sketch.rng
    how = rng.choice(("inner", "left"))
    on = _joined(sketch)
    joined = sketch.add("join", {"join": [left, right], "on": on, "within": _ms(sketch, 60, 300), "how": how})
    return _with_own_columns(sketch, joined, on)


def _joined(sketch: Sketch) -> list[str]:
    """The columns that a join or a lookup is on."""
    if sketch.menu.exact and sketch.rng.random() < 0.7:
        return sketch.rng.choice((["d"], ["d"], ["a"], ["a", "k"], ["d", "a"], ["w"]))
    return sketch.rng.choice((["k"], ["k"], ["k", "n"], ["b", "k"], ["v"], ["t"]))


def _with_own_columns(sketch: Sketch, joined: str, on: list[str]) -> str:
    theirs = {name: name if name in on else f"coalesce({name}_right, {name})" for name in ("v", "d", "w", "a")}
    select = {name: theirs.get(name, name) for name in sketch.menu.schema}
    return sketch.add("map", {"map": joined, "select": select})


def _row_operator(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    if sketch.menu.own and rng.random() < 0.7:
        return _totals(sketch, source)
    if sketch.menu.recent and rng.random() < 0.7:
        return _recent_operator(sketch, source)
    pick = rng.random() if sketch.menu.stateful else rng.uniform(0, 0.75)
    if pick < 0.4:
        is_exact = sketch.menu.exact and rng.random() < 0.7
        return sketch.add("filter", {"filter": source, "where": rng.choice(list(exact.CONDITIONS if is_exact else CONDITIONS))})
    if pick < 0.75:
        return sketch.add("map", {"map": source, "select": {c: _selected(sketch, c) for c in sketch.menu.schema}})
    spec: dict[str, Any] = {"distinct": source, "on": _compared(sketch)}
    if not sketch.menu.unbounded or rng.random() < 0.7:
        spec["window"] = {"tumbling": _ms(sketch, 100, 700)}
    return sketch.add("distinct", spec)


def _recent_operator(sketch: Sketch, source: str) -> str:
    within = _ms(sketch, 60, 600)
    return sketch.add("deduplicate", {"deduplicate": source, "on": _compared(sketch), "within": within})


def _totals(sketch: Sketch, source: str) -> str:
    given: dict[str, Any] = {"by": _compared(sketch)}
    if not sketch.menu.unbounded or sketch.rng.random() < 0.7:
        given["window"] = _ms(sketch, 100, 700)
    return sketch.add("python", {"python": source, "operator": TOTALS, "with": given})


def _compared(sketch: Sketch) -> list[str]:
    """The columns of which all are equal in rows that an operator takes for the same."""
    if sketch.menu.exact and sketch.rng.random() < 0.7:
        return sketch.rng.choice((["d"], ["a"], ["k", "d"], ["a", "d"], ["w"]))
    return sketch.rng.choice((["k"], ["k", "n"], ["k", "v"], ["t"], ["b", "k"], ["v"]))


def _selected(sketch: Sketch, column: str) -> str:
    """An expression for a column: most often the column itself."""
    rng = sketch.rng
    if sketch.menu.exact and rng.random() < 0.4:
        return rng.choice(list(exact.SELECTED[column]))
    return column if rng.random() < 0.5 or column in exact.SCHEMA else rng.choice(list(SELECTED[column]))


def _session(sketch: Sketch) -> dict[str, str]:
    gap = _on_grid(sketch, sketch.rng.randint(40, 250))
    if sketch.menu.unbounded and sketch.rng.random() < 0.3:
        return {"session": f"{gap}ms"}
    return {"session": f"{gap}ms", "longest": f"{_on_grid(sketch, sketch.rng.randint(gap, 1_500) + sketch.menu.grid_ms)}ms"}


def _window(sketch: Sketch, low: int, high: int) -> dict[str, str]:
    rng = sketch.rng
    if rng.random() >= 0.35:
        return {"tumbling": _ms(sketch, low, high)}
    every = _on_grid(sketch, rng.randint(60, 250))
    size = every * rng.choice((2, 3))
    if rng.random() < 0.3:
        # Panes are then shorter than the steps.
        every, size = every // PANE_MS * PANE_MS, (size + rng.randrange(every)) // PANE_MS * PANE_MS
    return {"sliding": f"{size}ms", "every": f"{every}ms"}


def _window_operator(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    by = rng.choice((["k"], ["k"], ["k"], ["k", "n"], ["b"], ["v"], ["t"], []))
    if sketch.menu.exact and rng.random() < 0.6:
        by = rng.choice((["d"], ["a"], ["a", "k"], ["d", "a"], ["w"]))
    if sketch.menu.own and rng.random() < 0.5:
        given = {"by": by, "window": _ms(sketch, 80, 700)}
        return sketch.add("python", {"python": source, "operator": NEWEST, "with": given})
    if rng.random() < 0.25:
        order = rng.choice(("v desc", "n, v", "v", "t desc, n", "b desc, v", "k, t"))
        if sketch.menu.exact and rng.random() < 0.7:
            order = rng.choice(("d desc", "a, d", "w desc, a", "d, w", "a desc, v"))
        spec = {"top": source, "k": rng.randint(1, 3), "order_by": order}
        return sketch.add("top", {**spec, "window": _window(sketch, 100, 600), "by": by})
    compute = {"c": "count(*)"}
    for column in rng.sample(sorted(COMPUTED), rng.randint(0, 4)):
        compute[column] = COMPUTED[column]
    if sketch.menu.own:
        compute |= {column: ESTIMATED[column] for column in rng.sample(sorted(ESTIMATED), rng.randint(0, 3))}
    if sketch.menu.exact:
        compute |= {column: exact.COMPUTED[column] for column in rng.sample(sorted(exact.COMPUTED), rng.randint(1, 5))}
    is_session = sketch.menu.recent and rng.random() < 0.7
    window = _session(sketch) if is_session else _window(sketch, 80, 700)
    return sketch.add("aggregate", {"aggregate": source, "window": window, "by": by, "compute": compute})


def _after_window(sketch: Sketch, source: str) -> str:
    rng = sketch.rng
    if "top" in sketch.operators[source]:
        return sketch.add("filter", {"filter": source, "where": "v > 3"})
    if rng.random() < 0.5:
        return sketch.add("filter", {"filter": source, "where": "c > 1"})
    window = {"tumbling": _ms(sketch, 300, 900)}
    compute = {"c": "count(*)", "sum_c": "sum(c)"}
    return sketch.add("aggregate", {"aggregate": source, "window": window, "compute": compute})


def _ms(sketch: Sketch, low: int, high: int) -> str:
    return f"{_on_grid(sketch, sketch.rng.randint(low, high))}ms"


def _on_grid(sketch: Sketch, ms: int) -> int:
    grid = sketch.menu.grid_ms
    return max(ms // grid, 1) * grid
