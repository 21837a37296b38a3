"""Two queries over the flights of January 2013, with JFK cut off for a while: what is seen, and how the modes compare.

usage: python examples/flights/demo.py DIR        or: make demo
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from prepare import prepare
from rich.console import Console

from boreal_cli.tables import comparison_table, show_run
from embedded import run_folder
from embedded.compare import Comparison, combinations, compare, prepare_folder
from embedded.run import Outcome
from embedded.session import RunOptions, RunSession, make_session

HERE = Path(__file__).parent
RATE = "5000/s"
FAULTS = ("cut jfk at 1s for 3500ms",)
POLICIES = "process/process,delay/delay"
QUERIES = {"departures": ("ewr", "jfk", "lga"), "weather": ("ewr", "jfk", "lga", "weather")}


def main(out: Path) -> None:
    console = Console(highlight=False)
    prepare(out / "data", month=1)
    # Each process begins with a fresh interpreter: a fork would not have the threads of Arrow.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        # In the order of need, but for the longest, which would keep one process busy at the end.
        first = pool.submit(run, "departures", out)
        longest = pool.submit(compared, "weather", out)
        runs = {"departures": first, "weather": pool.submit(run, "weather", out)}
        comparisons = {"departures": pool.submit(compared, "departures", out), "weather": longest}
        for name in QUERIES:
            console.rule(f"boreal run {name}.yaml")
            show_run(runs[name].result(), session_of(name, out), out / name)
            show_correction(out / name / "changes.jsonl")
            console.rule(f"boreal compare {name}.yaml")
            console.print(comparison_table(comparisons[name].result()))
            console.print(f"open {compared_folder(name, out) / 'compare.html'}")
    console.rule("next")
    console.print("see it live, in a browser: make setup, then .venv/bin/boreal up --embedded --demo")


def session_of(name: str, out: Path) -> RunSession:
    sources = [f"{stream}={out / 'data' / stream}.csv" for stream in QUERIES[name]]
    return make_session(HERE / f"{name}.yaml", sources, RunOptions(faults=FAULTS, rate=RATE))


def run(name: str, out: Path) -> Outcome:
    run_folder.prepare(out / name)
    return session_of(name, out).run(out / name)


def compared_folder(name: str, out: Path) -> Path:
    return out / f"{name}-compared"


def compared(name: str, out: Path) -> Comparison:
    session, folder_of_all = session_of(name, out), compared_folder(name, out)
    chosen, notes = combinations(session, "all", POLICIES)
    prepare_folder(folder_of_all)
    return compare(session, chosen, notes, folder_of_all)


def show_correction(changes: Path) -> None:
    corrected = first_correction(changes)
    if corrected is not None:
        missing = " and ".join(corrected[0]["missing_inputs"])
        print(f"one result of many, first without {missing}, then for good:")
        for record in corrected:
            print(f"  {record['type']:<9} at {record['emitted_ms'] / 1000:6.3f}s  {json.dumps(record['data'])}")


def first_correction(changes: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first tentative result, and the stable one in its place, that differ in more than being certain."""
    tentative: dict[str, dict[str, Any]] = {}
    with changes.open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            place = json.dumps([record.get("event_time"), record.get("key")])
            if record["type"] == "tentative":
                tentative[place] = record
            elif record["type"] == "stable" and tentative.get(place, record)["data"] != record["data"]:
                return tentative[place], record
    return None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
