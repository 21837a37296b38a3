"""Runs the tests that mutants name, with the mutant and without: `python tests/simulation/named_tests.py MUTANT ...` prints
JSON, for each mutant what went wrong with it and without it, null for nothing. A process apart, since pytest runs in it."""

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


def run(test: str, mutant: str | None) -> str | None:
    """What went wrong; None where the test passed."""
    plugin = Under(mutant)
    with redirect_stdout(sys.stderr):
        code = pytest.main([test, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[plugin])
    if code is pytest.ExitCode.OK:
        return None
    return plugin.failures[0] if plugin.failures else f"exit: {code!r}"


def main(names: list[str]) -> None:
    verdicts = {}
    for name in names:
        test = MUTANTS[name].caught_by
        assert test is not None
        verdicts[name] = (run(test, name), run(test, None))
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main(sys.argv[1:])
