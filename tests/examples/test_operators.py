"""examples/operators as a user has it: installed by pip, its own tests run, and a query that names its operators."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "operators"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process that has the package."""
    folder = tmp_path_factory.mktemp("installed")
    copy = folder / "source"
    for name in ("pyproject.toml", "trade_operators/__init__.py"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((EXAMPLE / name).read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, str(copy)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]), "PYTHONSAFEPATH": "1"}


def boreal(arguments: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "boreal", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


@pytest.mark.soak
def test_its_tests_pass(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(EXAMPLE / "tests")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_query_names_its_operators(environment: dict[str, str], tmp_path: Path) -> None:
    """`boreal run` with an outage, checked against a run without one."""
    for name in ("vwap.yaml", "trades.csv"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    options = ["--source", "trades=trades.csv", "--rate", "100/s", "--fault", "cut trades at 500ms for 800ms"]
    done = boreal(["verify", "vwap.yaml", *options], environment, tmp_path)
    assert done.returncode == 0 and "same: " in done.stdout, done.stdout + done.stderr


def test_without_the_package_the_query_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    options = ["--source", f"trades={EXAMPLE / 'trades.csv'}"]
    done = boreal(["verify", str(EXAMPLE / "vwap.yaml"), *options], {**environment, "PYTHONPATH": str(ROOT)}, tmp_path)
    assert done.returncode
    assert "operators.tagged.operator" in done.stderr and "is not installed here" in done.stderr, done.stderr
