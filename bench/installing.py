"""Packages that are installed for a benchmark or a test: a folder with their metadata, as pip would leave it, for the path of a
process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from boreal.operators.installed import GROUP


def install(folder: Path, package: str, version: str, operators: Mapping[str, str]) -> Path:
    """Register operators, each by its name and as MODULE:CLASS, as those of a package. The folder, for sys.path or
    PYTHONPATH."""
    made = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    entries = "".join(f"{name} = {target}\n" for name, target in operators.items())
    (made / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")
    return folder
