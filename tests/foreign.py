"""A user's application with folders that are called as boreal's packages are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "api", "bench", "boreal_cli", "boreal_testing", "deployment", "embedded", "formats", "intake", "logs", "operators",
    "reconcile", "services", "simulation", "spark_jobs", "sunion",
)  # fmt: skip


def make_foreign_packages(directory: Path) -> Path:
    """`directory` with a package of each name, which raises when it is imported."""
    for name in NAMES:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(f"raise AssertionError('the user has a package called {name} too')\n")
    return directory


def run_python(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python that runs in such a directory. -c and -m put that first on sys.path, before PYTHONPATH with boreal's own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )
