"""Runs the tests that mutants name: `python tests/simulation/named_tests.py MUTANT ...` prints a line of JSON for each mutant,
[mutant, what went wrong], and at the end one for all of these tests without any mutant; null is for nothing. A process apart,
since pytest runs in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

from simulation.mutants import MUTANTS, mutated


class Under:
    """A plugin: every test's call runs with this mutant. failures: what went wrong, in a line."""

    def __init__(self, mutant: str | None) -> None:
        self.mutant = mutant
        self.failures: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with mutated(self.mutant):
            yield

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures.append(f"{report.when}: {crash.message if crash is not None else report.longrepr}")


def run(tests: list[str], mutant: str | None) -> None:
    """Print what went wrong with these tests."""
    plugin = Under(mutant)
    with redirect_stdout(sys.stderr):
        code = pytest.main([*tests, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[plugin])
    failures = plugin.failures or [f"exit: {code!r}"]
    print(json.dumps([mutant, None if code is pytest.ExitCode.OK else failures[0]]), flush=True)


def main(names: list[str]) -> None:
    tests = {name: MUTANTS[name].caught_by for name in names}
    for name, test in tests.items():
        assert test is not None
        run([test], name)
    run(sorted({test for test in tests.values() if test is not None}), None)


if __name__ == "__main__":
    main(sys.argv[1:])
