"""`boreal simulate`: many seeds, each a run with faults and one without, compared and checked."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from boreal.model.frames import Data, RecDone, Start, Undo
from boreal.query.plan import Node, Plan
from boreal.query.spec import Join, Top
from embedded.world import UPLOAD_US
from reconcile.events import InstanceId
from simulation.families import make_scenario
from simulation.invariants import Violation, check, check_operators
from simulation.mutants import mutated
from simulation.oracle import Oracle
from simulation.pool import make_pool, prepare
from simulation.run import Observation, observe
from simulation.scenario import Scenario, make_reference

CHUNK = 10
"""Seeds that a process takes at a time."""


@dataclass
class SeedVerdict:
    """The result of one seed."""

    seed: int
    """The seed."""
    violations: list[Violation]
    """All anomalies; empty if every invariant held."""
    faults: Counter[str]
    """How many faults of each kind took place."""
    coverage: Counter[str]
    """How often the run went through each counted situation."""


class ScenarioJudge:
    """Judges the runs of one scenario. The reference is a run of the same inputs without failures and mutants, which itself is
    compared with the operators' oracle. It is made once, however many mutants are tried."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._reference = observe(make_reference(scenario))
        self._oracle = Oracle(scenario.plan, scenario.feeds)
        self._faults = list(check_operators(self._oracle, self._reference))
        self._plain: SeedVerdict | None = None

    def judge(self, mutant: str | None = None) -> SeedVerdict:
        """Run the scenario and judge the run. mutant: the name of a seeded bug (`simulation.mutants`); None for none."""
        if mutant is None and self._plain is not None:
            return self._plain
        scenario, reference = self._scenario, self._reference
        with mutated(mutant):
            observed = observe(scenario)
        violations = check(scenario, observed, reference) + self._faults
        if reference.error is not None or not reference.settled:
            violations.append(Violation("crash", f"the run without failures: {reference.error or reference.unsettled}"))
        observed.faults["clock_skew"] += bool(scenario.skews or scenario.walls)
        verdict = SeedVerdict(scenario.seed, violations, observed.faults, _coverage(scenario, observed, self._oracle))
        if mutant is None:
            self._plain = verdict
        return verdict


def run_seed(seed: int, mutant: str | None = None) -> SeedVerdict:
    """Run one seed and judge it. mutant: the name of a seeded bug (`simulation.mutants`); the reference runs without it."""
    return ScenarioJudge(make_scenario(seed)).judge(mutant)


def simulate(
    seeds: int,
    first: int = 0,
    mutant: str | None = None,
    processes: int | None = None,
    on_progress: Callable[[int, Sequence[dict[str, Any]]], None] | None = None,
) -> dict[str, Any]:
    """Run `seeds` seeds from `first` on (contract: boreal simulate). The result does not depend on `processes`,
    except for its duration; None: one per core. on_progress(done, violations so far) is called after every few seeds."""
    started = time.perf_counter()
    violations: list[dict[str, Any]] = []
    faults: Counter[str] = Counter()
    coverage: Counter[str] = Counter()
    done = 0
    for verdicts in _verdicts(seeds, first, mutant, processes or os.cpu_count() or 1):
        for verdict in verdicts:
            violations += [
                {"seed": verdict.seed, "invariant": found.invariant, "message": str(found)}
                for found in verdict.violations
            ]
            faults.update(verdict.faults)
            coverage.update(verdict.coverage)
        done += len(verdicts)
        if on_progress is not None:
            on_progress(done, violations)
    return {
        "seeds": seeds,
        "first": first,
        "violations": violations,
        "faults": dict(sorted(faults.items())),
        "coverage": dict(sorted(coverage.items())),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _verdicts(seeds: int, first: int, mutant: str | None, processes: int) -> Iterator[list[SeedVerdict]]:
    """The seeds' verdicts in the order of the seeds, a chunk at a time."""
    chunks = [range(at, min(at + CHUNK, first + seeds)) for at in range(first, first + seeds, CHUNK)]
    if processes == 1 or len(chunks) <= 1:
        prepare()
        yield from (_run_chunk(chunk, mutant) for chunk in chunks)
        return
    with make_pool(min(processes, len(chunks))) as pool:
        yield from pool.map(_run_chunk, chunks, [mutant] * len(chunks))


def _run_chunk(chunk: range, mutant: str | None) -> list[SeedVerdict]:
    return [run_seed(seed, mutant) for seed in chunk]


def _joins_itself(plan: Plan, node: Node) -> bool:
    """Whether both sides of a join come from the same stream."""
    return isinstance(node.spec, Join) and len({edge.operator for edge in plan.sources}) == 1


def _is_sliding_top(node: Node) -> bool:
    return isinstance(node.spec, Top) and node.spec.window.every_us < node.spec.window.size_us


def _readers(plan: Plan, stream: str) -> int:
    return sum(any(edge.source and edge.operator == stream for edge in fragment.edges) for fragment in plan.fragments)


def _coverage(scenario: Scenario, observed: Observation, oracle: Oracle) -> Counter[str]:
    """Counts of what occurred in the run: messages and reads, transitions, frames, operators and patterns, edge cases."""
    counts = Counter(observed.coverage) + oracle.seen
    plan = scenario.plan
    counts.update(("family " + scenario.family, f"mode {plan.mode}", f"policy {plan.policy}"))
    counts.update(f"operator {node.spec.kind}" for fragment in plan.fragments for node in fragment.nodes)
    counts.update(f"pattern {name}" for name in scenario.patterns)
    counts.update(f"owed {what}" for what in ("delay", "silence", "masking", "names") if getattr(scenario, f"owes_{what}"))
    sharded = {edge.key for fragment in plan.fragments for edge in fragment.edges if fragment.shards > 1}
    counts["shards by several keys"] += len(sharded) > 1
    counts["self-join"] += any(_joins_itself(plan, node) for fragment in plan.fragments for node in fragment.nodes)
    counts["sliding top"] += any(_is_sliding_top(node) for fragment in plan.fragments for node in fragment.nodes)
    counts["stream of two fragments"] += any(_readers(plan, name) > 1 for name in scenario.feeds)
    counts["frames one at a time"] += scenario.poll_frames == 1
    counts["slow uploads"] += scenario.upload_us > UPLOAD_US
    counts["far places"] += bool(scenario.hops_us)
    counts["records replayed"] += scenario.keeps_records
    before: dict[InstanceId, str] = {}
    for _, who, state in observed.states:
        name = state.value if state is not None else "DEAD"
        if who in before:
            counts[f"{before[who]} -> {name}"] += 1
        before[who] = name
    for frames in observed.frames.values():
        for _, frame in frames:
            if isinstance(frame, Data):
                counts["rows tentative" if frame.tentative else "rows stable"] += frame.batch.num_rows
            elif isinstance(frame, Undo | RecDone | Start):
                counts[type(frame).__name__.upper()] += 1
    return counts
