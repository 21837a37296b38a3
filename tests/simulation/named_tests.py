"""Runs the tests that mutants name: `python tests/simulation/named_tests.py MUTANT ...` prints a line of JSON for each mutant,
[mutant, what went wrong], and at the end one for all of these tests without any mutant; null is for nothing. A process apart,
since pytest runs in it; all tests are collected once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

from simulation.mutants import MUTANTS, mutated


class Rounds:
    """A plugin that runs, for each mutant, the tests named beside it: the tests' calls are with that mutant. failures: what
    went wrong in the round so far, in a line each. lines: the outcome of the rounds."""

    def __init__(self, rounds: list[tuple[str | None, set[str]]]) -> None:
        self.rounds = rounds
        self.mutant: str | None = None
        self.failures: list[str] = []
        self.lines: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for mutant, names in self.rounds:
            self.mutant, self.failures = mutant, []
            items = [item for item in session.items if item.nodeid.partition("[")[0] in names]
            for item in items:
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            failed = self.failures or ([] if items else ["no such test"])
            self.lines.append(json.dumps([self.mutant, failed[0] if failed else None]))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with mutated(self.mutant):
            yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures.append(f"{report.when}: {crash.message if crash is not None else report.longrepr}")


def main(names: list[str]) -> None:
    tests = {name: MUTANTS[name].caught_by or "" for name in names}
    everything = set(tests.values())
    plugin = Rounds([*((name, {test}) for name, test in tests.items()), (None, everything)])
    with redirect_stdout(sys.stderr):
        pytest.main([*sorted(everything), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[plugin])
    print("\n".join(plugin.lines))


if __name__ == "__main__":
    main(sys.argv[1:])
