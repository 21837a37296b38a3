"""What a client sees, for each shape of query, policy and fault: docs/behaviour.md, from embedded runs whose work is modelled.

`python -m simulation.behaviour` writes the page again; the same code writes the same page, on every machine.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boreal.query.spec import Hold
from embedded import run_folder
from embedded.session import RunOptions, RunSession, make_session

PAGE = Path(__file__).resolve().parents[1] / "docs" / "behaviour.md"

X_S = 2.0
FAULT_AT_S = 6.0
SOURCE = "generate:20,20,4"
SEED = 1

_ALL = {"all": {"union": ["a", "b"]}}
_SECOND = {"tumbling": "1s"}
SHAPES: dict[str, dict[str, Any]] = {
    "filter of a union": {"operators": {**_ALL, "out": {"filter": "all", "where": "v > 1"}}},
    "count by tumbling window": {
        "operators": {**_ALL, "out": {"aggregate": "all", "window": _SECOND, "by": ["k"], "compute": {"n": "count(*)"}}}
    },
    "count by sliding window": {
        "operators": {
            **_ALL,
            "out": {"aggregate": "all", "window": {"sliding": "3s", "every": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}},
        }
    },
    "count by session": {
        "operators": {
            **_ALL,
            "out": {"aggregate": "all", "window": {"session": "200ms"}, "by": ["k"], "compute": {"n": "count(*)"}},
        }
    },
    "inner join": {"operators": {"out": {"join": ["a", "b"], "on": ["k"], "within": "100ms", "how": "inner"}}},
    "left join": {"operators": {"out": {"join": ["a", "b"], "on": ["k"], "within": "100ms", "how": "left"}}},
    "lookup in a table, which is stream a": {
        "operators": {"out": {"lookup": ["b", "a"], "on": ["k"], "within": "1s", "how": "left"}}
    },
    "deduplicate": {"operators": {**_ALL, "out": {"deduplicate": "all", "on": ["k"], "within": "100ms"}}},
    "distinct by window": {"operators": {**_ALL, "out": {"distinct": "all", "on": ["k"], "window": _SECOND}}},
    "top 2 by window": {"operators": {**_ALL, "out": {"top": "all", "k": 2, "order_by": "v desc", "window": _SECOND}}},
    "count, in a chain of two fragments": {
        "operators": {**_ALL, "out": {"aggregate": "all", "window": _SECOND, "by": ["k"], "compute": {"n": "count(*)"}}},
        "fragments": {"merge": {"operators": ["all"]}, "last": {"operators": ["out"]}},
    },
}
"""The part of a query that makes its shape; streams a and b have columns k and v, and the output is `out`."""

FAULTS = {
    "a stream is cut for a second, less than alpha\\*X": "cut a at 6s for 1s",
    "a stream is cut for five seconds": "cut a at 6s for 5s",
    "a stream comes three seconds late, for five seconds": "slow a by 3s at 6s for 5s",
    "a replica is cut from all for five seconds": "cut FRAGMENT.r0 at 6s for 5s",
    "a replica crashes, and is back after five seconds": "crash FRAGMENT.r0 at 6s for 5s",
    "a replica is frozen for five seconds": "freeze FRAGMENT.r0 at 6s for 5s",
    "both replicas crash, and are back after five seconds": "crash FRAGMENT.r0 at 6s for 5s; crash FRAGMENT.r1 at 6s for 5s",
    "a stream stops for good": "stop a at 6s",
}
"""The faults, as `boreal run --fault` takes them, with `; ` between two. FRAGMENT: the last one."""

HOLDS = tuple(hold.value for hold in reversed(Hold))
"""What may become of new input: each is a policy for failures, and one for corrections."""


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """What a client saw in a run. Durations in seconds."""

    stable: int
    """Stable rows."""
    waited: float
    """The longest that a new row took, from the ingest of the last available row that it needed."""
    tentative: int
    """Tentative rows."""
    longest_tentative: float
    """The longest that one of them was shown before it was undone; 0 if none was."""
    left: int
    """Tentative rows that were never undone."""
    heals: bool
    """Whether the fault has an end."""
    corrected_after: float | None
    """When the last correction ended, after the end of the fault; None if there was none, or the fault has no end."""


def observe(shape: str, fault: str, policy: str) -> ClientSummary:
    """One run. fault: a text of FAULTS."""
    session = make_run(shape, FAULTS[fault], policy)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_folder.prepare(out)
        outcome = session.run(out)
        changes = [json.loads(line) for line in (out / "changes.jsonl").read_text(encoding="utf-8").splitlines()]
    shown: list[float] = []
    longest, corrected_ms = 0.0, None
    for change in changes:
        match change["type"]:
            case "tentative":
                shown.append(change["emitted_ms"])
            case "undo":
                longest = max([longest, *(change["emitted_ms"] - at for at in shown)])
                shown.clear()
            case "rec_done":
                corrected_ms = change["emitted_ms"]
    ends_us = [fault.at_us + fault.for_us for fault in session.faults if fault.for_us is not None]
    after = max(corrected_ms / 1e3 - max(ends_us) / 1e6, 0.0) if ends_us and corrected_ms is not None else None
    report = outcome.report
    waited = (report["delay_new_ms_max"] or 0.0) / 1e3
    return ClientSummary(report["n_stable"], waited, report["n_tentative"], longest / 1e3, len(shown), bool(ends_us), after)


def make_run(shape: str, fault: str, policy: str) -> RunSession:
    columns = {"time": "at", "schema": {"k": "string", "v": "int"}}
    query = {
        "name": "behaviour",
        "streams": {"a": columns, "b": columns},
        "output": "out",
        "delay_threshold": f"{X_S:g}s",
        "reconcile": "overlay_redo",
        "replicas": 2,
        **SHAPES[shape],
    }
    last = [*SHAPES[shape].get("fragments", {"main": {}})][-1]
    options = RunOptions(faults=fault.replace("FRAGMENT", last).split("; "), speed="1x", policy=policy, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "query.json"
        path.write_text(json.dumps(query), encoding="utf-8")
        return make_session(path, [f"a={SOURCE}", f"b={SOURCE}"], options)


def told(seen: ClientSummary) -> str:
    """One cell of the page."""
    waited = f"{seen.waited:.1f} s"
    if seen.waited > X_S:
        waited = f"**{waited}**"
    if not seen.heals:
        then = f"{seen.left} tentative ones" if seen.left else "nothing"
        return f"{seen.stable} rows final, then {then}, after {waited} at most"
    if not seen.tentative:
        return f"all final, after {waited} at most"
    after = "" if seen.corrected_after is None else f"; all right {seen.corrected_after:.1f} s after the fault"
    return f"{seen.tentative} rows tentative, after {waited} at most, for up to {seen.longest_tentative:.1f} s{after}"


def cell(shape: str, fault: str, failure: str) -> str:
    """What a client sees with this policy for failures, and each one for corrections: once, if it is always the same."""
    cells = {hold: told(observe(shape, fault, f"{failure}/{hold}")) for hold in HOLDS}
    same = set(cells.values())
    return same.pop() if len(same) == 1 else "; ".join(f"`{failure}/{hold}`: {text}" for hold, text in cells.items())


def page() -> Iterator[str]:
    """The page, in pieces."""
    yield f"""# What a client sees, and for how long

For each shape of query, policy and fault: how long a client waited for a new result at most, how many rows it was given
tentatively and for how long, and when all was right again. X is {X_S:g} s; two streams have 20 rows a second each, each
fragment has two replicas, and corrections are by overlay_redo (the modes differ in cost, and not in what a client sees). The
fault begins {FAULT_AT_S:g} s after the first row. **Bold** is more than X: the policy `suspend` asks for that, since it waits
for what is missing; and where both replicas are away, nobody answers.

A column is a policy for failures: what becomes of new input while an input is missing. Each cell is of three runs, one for each
policy for corrections (`process`, `delay`, `suspend`). Where these differ, the cell gives each as FAILURE/STABILIZATION. They
seldom do: the other replica answers while one corrects. Waiting counts from the last available row that a result needs. The
runs are embedded ones whose work is modelled, so that `python -m simulation.behaviour` writes this page again to the letter;
what real servers add is in [figures.md](figures.md) and [faults.md](faults.md). [concepts.md](concepts.md) explains the words.
"""
    for fault, text in FAULTS.items():
        yield f"\n## {fault[0].upper()}{fault[1:]}\n\n`{text.replace('FRAGMENT', 'main').replace('; ', '`, `')}`\n\n"
        yield f"| query | {' | '.join(f'`{hold}`' for hold in HOLDS)} |\n|---|{'---|' * len(HOLDS)}\n"
        for shape in SHAPES:
            cells = (cell(shape, fault, hold) for hold in HOLDS)
            yield f"| {shape} | {' | '.join(cells)} |\n"


def main() -> None:
    PAGE.write_text("".join(page()), encoding="utf-8")


if __name__ == "__main__":
    main()
