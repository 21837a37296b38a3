"""`boreal verify`: compares the stable output with and without faults, byte by byte (I1), and replays the changelogs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embedded import run_folder
from embedded.session import RunSession, Watch

CLEAN, FAULTED = "without faults", "with faults"


@dataclass(frozen=True)
class Difference:
    """The first line that differs between two files."""

    line: int
    """The number of the line, from 1."""
    left: str | None
    """The line of the first file; None after its end."""
    right: str | None
    """The line of the second file; None after its end."""


@dataclass(frozen=True)
class Verdict:
    """The result of `boreal verify`."""

    rows: int
    """The number of rows of the stable output without faults."""
    first_difference: Difference | None
    """The first difference between the run without faults (left) and the run with faults (right); None if they are the same."""
    replay: dict[str, Difference]
    """By run: the first difference between its replayed changelog (left) and its stable.jsonl (right)."""
    is_stable: bool
    """Whether all replicas of both runs ended STABLE."""
    runs: list[dict[str, Any]]
    """The reports of the runs, without and with faults."""

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


def verify(
    session: RunSession, watch_for: Callable[[str], Watch | None] = lambda _: None, scratch: Path | None = None
) -> Verdict:
    """Run the session without and with its faults, and compare the results. scratch: a folder for files that go again; None:
    that of the system."""
    runs, replay, is_stable = [], {}, True
    with TemporaryDirectory(prefix="boreal-verify-", dir=scratch) as folder:
        parts = {CLEAN: Path(folder, "clean"), FAULTED: Path(folder, "faulted")}
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
    """The first difference between two sequences of lines; None if they are the same."""
    for number, (one, other) in enumerate(zip_longest(left, right), start=1):
        if one != other:
            return Difference(number, one, other)
    return None


def replay_difference(part: Path, with_tentative: bool = True) -> Difference | None:
    """Replay the changes.jsonl of a run, and return the first difference to its stable.jsonl, or None.

    Rows are compared as JSON values, because a record contains its row. `with_tentative=False` ignores the rows that are
    still tentative at the end, for a run that did not heal.
    """
    left = (json.dumps(row) for row in replayed(_lines(part / "changes.jsonl"), with_tentative))
    return first_difference(left, (json.dumps(json.loads(line)) for line in _lines(part / "stable.jsonl")))


def replayed(changes: Iterable[str], with_tentative: bool = True) -> list[Any]:
    """The rows that remain after a changelog of one partition: an undo revokes every row after its `after_seq`."""
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
