"""`boreal compare`: runs of the same input and faults with several modes and policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from boreal.model.errors import UserError
from boreal.query.spec import Hold, Mode, Policy
from embedded import run_folder
from embedded.compare_page import page
from embedded.run import Outcome
from embedded.session import RunSession, Watch, parse_mode

Entry = TypeVar("Entry")

ALL = "all"
ALL_POLICIES = tuple(
    Policy(failure=failure, stabilization=stabilization)
    for failure in (Hold.PROCESS, Hold.DELAY)
    for stabilization in (Hold.PROCESS, Hold.DELAY, Hold.SUSPEND)
)
"""The six policies of the paper that keep X during a failure. With `suspend` during a failure, results wait for the heal."""

COMPARE_FILES = ("compare.json", "compare.html")
_PARTS = tuple(f"{mode}-{failure}-{after}" for mode in Mode for failure in Hold for after in Hold)


@dataclass(frozen=True)
class Combination:
    """One run of a comparison."""

    mode: Mode
    """The reconciliation mode of the run."""
    policy: Policy
    """The policy of the run."""

    @property
    def name(self) -> str:
        """The name of its folder: MODE-FAILURE-STABILIZATION."""
        return f"{self.mode}-{self.policy.failure}-{self.policy.stabilization}"

    def __str__(self) -> str:
        return f"{self.mode} {self.policy}"


@dataclass(frozen=True)
class Comparison:
    """The result of `boreal compare`."""

    query: str
    """The name of the query."""
    faults: tuple[str, ...]
    """The texts of the faults."""
    runs: list[dict[str, Any]]
    """The report of each run, in the order of the combinations."""
    table: list[dict[str, Any]]
    """A row of figures for each run, in the same order; see `_row`."""
    notes: list[str]
    """The combinations that were omitted, with the reason."""

    @property
    def is_stable(self) -> bool:
        return all(row["is_stable"] for row in self.table)

    def to_json(self) -> str:
        shape = {
            "query": self.query,
            "faults": list(self.faults),
            "table": self.table,
            "runs": self.runs,
            "notes": self.notes,
        }
        return json.dumps(shape, indent=2) + "\n"


def combinations(session: RunSession, modes: str, policies: str) -> tuple[list[Combination], list[str]]:
    """The combinations to run, and notes on omitted modes. modes: "all" or "M,M"; policies: "all" or "F/S,F/S".

    `all` omits a mode that the query does not allow. For a mode that the user names, that is a UserError.
    """
    chosen_policies = ALL_POLICIES if policies == ALL else _listed(policies, lambda text: Policy.parse(text, "--policies"))
    notes: list[str] = []
    chosen_modes: list[Mode] = []
    for mode in tuple(Mode) if modes == ALL else _listed(modes, lambda text: parse_mode(text, "--modes")):
        try:
            session.planned(mode)
            chosen_modes.append(mode)
        except UserError as error:
            if modes != ALL:
                raise UserError("--modes", modes, error.problem, error.fix) from None
            notes.append(f"{mode} is omitted: {error.problem}")
    return [Combination(mode, policy) for mode in chosen_modes for policy in chosen_policies], notes


def _listed(text: str, parse: Callable[[str], Entry]) -> list[Entry]:
    """The parsed entries of a comma-separated list, without repetitions."""
    found: list[Entry] = []
    for part in text.split(","):
        entry = parse(part.strip())
        if entry not in found:
            found.append(entry)
    return found


def prepare_folder(out: Path) -> None:
    """Create the folder of a comparison, or remove an older comparison from it. Other files stay."""
    run_folder.prepare(out, COMPARE_FILES, _PARTS)


def compare(
    session: RunSession,
    chosen: Sequence[Combination],
    notes: Sequence[str],
    out: Path,
    watch_for: Callable[[Combination], Watch | None] = lambda _: None,
) -> Comparison:
    """Run each combination in its own folder, then write compare.html and compare.json to `out`."""
    runs, table = [], []
    for combination in chosen:
        report, row = run_combination(session, combination, out / combination.name, watch_for(combination))
        runs.append(report)
        table.append(row)
    done = Comparison(session.query.name, session.fault_texts, runs, table, list(notes))
    run_folder.write_whole(out / "compare.html", page(done.query, session.faults, done.faults, runs, table))
    run_folder.write_whole(out / "compare.json", done.to_json())
    return done


def run_combination(
    session: RunSession, combination: Combination, part: Path, watch: Watch | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one combination in a folder of its own, which is created: its report, and its row of the table."""
    run_folder.prepare(part)
    outcome = session.run(part, mode=combination.mode, policy=combination.policy, watch=watch)
    return outcome.report, _row(session, combination, outcome, part)


def _row(session: RunSession, combination: Combination, outcome: Outcome, part: Path) -> dict[str, Any]:
    """A row of the table.

    reconcile_seconds, checkpoint_bytes: the largest of all reconciliations. consistent_after_seconds: from the end of the last
    fault until all replicas are STABLE and the client has its last REC_DONE; None without faults, or if one did not heal.
    """
    report = outcome.report
    reconciliations = report["reconciliations"]
    return {
        "mode": str(combination.mode),
        "policy": str(combination.policy),
        "dir": combination.name,
        "is_stable": outcome.is_stable,
        "delay_new_ms_max": report["delay_new_ms_max"],
        "delay_new_ms_p99": report["delay_new_ms_p99"],
        "violations": report["violations"],
        "n_stable": report["n_stable"],
        "n_tentative": report["n_tentative"],
        "n_undone": report["n_undone"],
        "reconciliations": len(reconciliations),
        "reconcile_seconds": max((entry["seconds"] for entry in reconciliations), default=None),
        "checkpoint_bytes": max((entry["checkpoint_bytes"] for entry in reconciliations), default=None),
        "consistent_after_seconds": _consistent_after(session, outcome, part),
    }


def _consistent_after(session: RunSession, outcome: Outcome, part: Path) -> float | None:
    if not outcome.is_stable or not session.faults:
        return None
    ends = [fault.at_us + fault.for_us for fault in session.faults if fault.for_us is not None]
    if len(ends) < len(session.faults):
        return None
    healed_ms = max(ends) / 1000
    unstable = (span["to_ms"] for span in outcome.report["states"] if span["state"] != "STABLE")
    last_ms: float = max([healed_ms, *unstable, *_corrected_at(part / "changes.jsonl")])
    return round((last_ms - healed_ms) / 1000, 6)


def _corrected_at(changes: Path) -> Iterable[float]:
    """The times of the client's REC_DONE records, in milliseconds of run time."""
    with changes.open(encoding="utf-8") as lines:
        return [json.loads(line)["emitted_ms"] for line in lines if line.startswith('{"v":1,"type":"rec_done"')]
