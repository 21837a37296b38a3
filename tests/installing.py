"""The example package, installed for a test."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bench.installing import install
from boreal.operators.installed import GROUP

EXAMPLE = Path(__file__).parents[1] / "examples" / "operators"


def install_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install examples/operators for this process, until the test is over."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(install(folder, project["name"], project["version"], project["entry-points"][GROUP])))
