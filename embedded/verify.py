"""`boreal verify`: is the stable output, faults or not, the same to the byte (I1), and does the changelog lead to it?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embedded import run_folder
from embedded.session import Session, Watch

CLEAN, FAULTED = "without faults", "with faults"


@dataclass(frozen=True)
class Difference:
    """The first line of two files that is not the same in both; None where a file has ended."""

    line: int
    left: str | None
    right: str | None


@dataclass(frozen=True)
class Verdict:
    """rows: of the stable output without faults. first_difference: left is without faults, right with them.

    replay: the first line in which a run's replayed changelog (left) differs from its stable.jsonl (right), by run.
    """

    rows: int
    first_difference: Difference | None
    replay: dict[str, Difference]
    is_stable: bool
    runs: list[dict[str, Any]]

    @property
    def same(self) -> bool:
        return self.first_difference is None

    @property
    def holds(self) -> bool:
        return self.same and not self.replay and self.is_stable

    def to_json(self) -> str:
        shape = {
            "same": self.same,
            "holds": self.holds,
            "rows": self.rows,
            "first_difference": _named(self.first_difference, "without_faults", "with_faults"),
            "replay_differences": {run: _named(found, "replayed", "stable") for run, found in self.replay.items()},
            "is_stable": self.is_stable,
            "runs": self.runs,
        }
        return json.dumps(shape, indent=2) + "\n"


def verify(session: Session, watch_for: Callable[[str], Watch | None] = lambda _: None) -> Verdict:
    """Run the session without its faults and with them, and compare what the two runs leave."""
    runs, replay, is_stable = [], {}, True
    with TemporaryDirectory(prefix="boreal-verify-") as scratch:
        parts = {CLEAN: Path(scratch, "clean"), FAULTED: Path(scratch, "faulted")}
        for name, part in parts.items():
            run_folder.prepare(part)
            which = session if name == FAULTED else session.without_faults()
            outcome = which.run(part, watch=watch_for(name))
            runs.append(outcome.report)
            is_stable = is_stable and outcome.is_stable
            found = replay_difference(part, with_tentative=outcome.is_stable)
            if found is not None:
                replay[name] = found
        stable = {name: part / "stable.jsonl" for name, part in parts.items()}
        difference = first_difference(_lines(stable[CLEAN]), _lines(stable[FAULTED]))
    return Verdict(runs[0]["n_stable"], difference, replay, is_stable, runs)


def first_difference(left: Iterable[str], right: Iterable[str]) -> Difference | None:
    """Where two files of lines part, or None where they are the same."""
    for number, (one, other) in enumerate(zip_longest(left, right), start=1):
        if one != other:
            return Difference(number, one, other)
    return None


def replay_difference(part: Path, with_tentative: bool = True) -> Difference | None:
    """Replay a run's changes.jsonl: where what is left differs from its stable.jsonl, line by line.

    Rows are compared as values, since a record holds its row inside. Without `with_tentative`, what is still tentative
    at the end is left out, as befits a run that never healed.
    """
    left = (json.dumps(row) for row in replayed(_lines(part / "changes.jsonl"), with_tentative))
    return first_difference(left, (json.dumps(json.loads(line)) for line in _lines(part / "stable.jsonl")))


def replayed(changes: Iterable[str], with_tentative: bool = True) -> list[Any]:
    """The rows that a changelog of one partition leaves: an undo takes back every row after its `after_seq`."""
    kept: list[dict[str, Any]] = []
    for line in changes:
        record = json.loads(line)
        if record["type"] in ("stable", "tentative"):
            kept.append(record)
        elif record["type"] == "undo":
            while kept and kept[-1]["seq"] > record["after_seq"]:
                kept.pop()
    return [record["data"] for record in kept if with_tentative or record["type"] == "stable"]


def _lines(path: Path) -> Iterable[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def _named(found: Difference | None, left: str, right: str) -> dict[str, Any] | None:
    return None if found is None else {"line": found.line, left: found.left, right: found.right}
