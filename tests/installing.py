"""Packages that are installed for a test: a folder with their metadata, as pip would leave it, for the path of a process."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from boreal.operators.installed import GROUP

EXAMPLE = Path(__file__).parents[1] / "examples" / "operators"


def install(folder: Path, package: str, version: str, operators: Mapping[str, str]) -> Path:
    """Register operators, each by its name and as MODULE:CLASS, as those of a package. The folder, for sys.path or
    PYTHONPATH."""
    made = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    entries = "".join(f"{name} = {target}\n" for name, target in operators.items())
    (made / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    return folder


def install_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install examples/operators for this process, until the test is over."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(install(folder, project["name"], project["version"], project["entry-points"][GROUP])))
