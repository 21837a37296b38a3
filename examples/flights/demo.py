"""Two queries over the flights of January 2013, with JFK cut off for a while: what is seen, and how the modes compare.

usage: python examples/flights/demo.py DIR        or: make demo
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from prepare import prepare
from rich.console import Console

from boreal_cli.tables import comparison_table, show_run
from embedded import run_folder
from embedded.compare import combinations, compare, prepare_folder
from embedded.session import Session, make_session

HERE = Path(__file__).parent
FAULTS = ("cut jfk at 3s for 6s",)
POLICIES = "process/process,delay/delay"
QUERIES = {"departures": ("ewr", "jfk", "lga"), "weather": ("ewr", "jfk", "lga", "weather")}


def main(out: Path) -> None:
    console = Console(highlight=False)
    data = out / "data"
    prepare(data, month=1)
    for name, streams in QUERIES.items():
        sources = [f"{stream}={data / stream}.csv" for stream in streams]
        session = make_session(HERE / f"{name}.yaml", sources, faults=FAULTS, rate="2000/s")
        console.rule(f"boreal run {name}.yaml")
        run(session, out / name)
        console.rule(f"boreal compare {name}.yaml")
        chosen, notes = combinations(session, "all", POLICIES)
        compared = out / f"{name}-compared"
        prepare_folder(compared)
        console.print(comparison_table(compare(session, chosen, notes, compared)))
        console.print(f"open {compared / 'compare.html'}")


def run(session: Session, out: Path) -> None:
    run_folder.prepare(out)
    show_run(session.run(out), session, out)
    corrected = first_correction(out / "changes.jsonl")
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
