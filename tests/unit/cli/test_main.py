"""The command line itself: exit status, what goes to stdout and what to stderr, and how errors look."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from boreal_cli import app, main
from boreal_cli.tables import NOTHING_COMPARED
from embedded.run import Run
from tests.foreign import make_foreign_packages, run_python
from tests.thoroughness import every

ROOT = Path(__file__).parents[3]
CUT = ["--fault", "cut a at 1s for 2s"]


def error_of(captured: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The error, the one thing on stderr; stdout is empty."""
    out, err = captured.readouterr()
    assert out == ""
    parsed = json.loads(err)
    assert list(parsed) == ["error"] and list(parsed["error"]) == ["field", "value", "problem", "fix"]
    return parsed["error"]


def test_a_run_that_heals_exits_0_and_stdout_is_its_report(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boreal_cli.progress.LINE_EVERY_SECONDS", 3_600.0)  # a busy machine makes a short run long
    out = tmp_path / "out"
    assert main(["run", *options, *CUT, "--out", str(out), "--json"]) == 0
    shown, progress = capsys.readouterr()
    assert shown == (out / "report.json").read_text()
    assert json.loads(shown)["n_undone"] > 0
    assert progress == ""


def test_for_people_there_is_a_table_and_a_line_of_states(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *options, *CUT, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "stable" in shown and re.search(r"cut a at 1s for 2s +╳+", shown) and re.search(r"main\.r0 +━+[▒█]+━+", shown)


def test_logs_are_kept_in_files_once(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", *options, "--data", str(tmp_path / "data"), "--json", "--out"]
    assert main([*run, str(tmp_path / "out")]) == 0
    assert any((tmp_path / "data" / "logs").rglob("*.log"))
    capsys.readouterr()
    assert main([*run, str(tmp_path / "again")]) == 2
    error = error_of(capsys)
    assert (error["field"], error["problem"]) == ("--data", "already holds logs")
    assert not (tmp_path / "again").exists()


def test_a_run_that_does_not_heal_exits_1(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *options, "--fault", "stop a at 1s", "--out", str(tmp_path / "out")]) == 1
    assert "not every replica ended STABLE" in capsys.readouterr().out


def test_an_existing_folder_needs_force(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "report.json").write_text("old")
    assert main(["run", *options, "--out", str(out), "--json"]) == 2
    assert error_of(capsys)["field"] == "--out"
    assert main(["run", *options, "--rate", "1/s", "--out", str(out), "--force", "--json"]) == 2
    assert (out / "report.json").read_text() == "old"
    assert main(["run", *options, "--out", str(out), "--force", "--json"]) == 0
    assert json.loads((out / "report.json").read_text())["query"] == "small"
    assert (out / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["run", "QUERY", "--spede", "1x", "--out", "o"], "--spede", None),
        (["run", "QUERY"], "--out", None),
        (["run", "--out", "o"], "QUERY", None),
        (["run", "QUERY", "--out", "o", "--replicas", "two"], "--replicas", "two"),
        (["run", "QUERY", "--out", "o", "--seed=x"], "--seed", "x"),
        (["run", "no-such.yaml", "--out", "o"], "query", "no-such.yaml"),
        (["run", "QUERY", "--out", "o", "--rate", "5"], "--rate", "5"),
        (["simulate", "--seeds", "0"], "--seeds", "0"),
        (["bench", "no-such"], "NAME", "no-such"),
        (["bench", "evolution", "speed=1"], "KEY=VALUE", "speed=1"),
        (["bench", "evolution", "rate=fast"], "KEY=VALUE", "rate=fast"),
    ],
)
def test_usage_errors_have_the_same_form(
    arguments: list[str], field: str, value: str | None, query: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(query) if argument == "QUERY" else argument for argument in arguments]
    assert main([*given, "--json"]) == 2
    error = error_of(capsys)
    assert (error["field"], error["value"]) == (field, value)
    assert error["problem"] and error["fix"]
    assert main(given) == 2
    line = capsys.readouterr().err
    assert field in line and line.count("\n") == 1


def test_an_unknown_command_or_none_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rum", "--json"]) == 2
    assert "rum" in error_of(capsys)["problem"]
    assert main([]) == 2
    assert "Usage" in capsys.readouterr().out


def test_an_interrupt_exits_130(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "go", interrupted)
    assert main(["run", *options, "--out", str(tmp_path / "out")]) == 130
    assert not (tmp_path / "out" / "report.json").exists()


def test_a_broken_invariant_exits_1(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Run) -> None:
        raise AssertionError("stable rows follow tentative ones")

    monkeypatch.setattr(Run, "go", broken)
    assert main(["run", *options, "--out", str(tmp_path / "out"), "--json"]) == 1
    assert "stable rows follow" in error_of(capsys)["problem"]


def test_compare_and_verify_print_json_alone(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    chosen = ["--modes", "overlay_redo", "--policies", "process/process,delay/delay"]
    assert main(["compare", *options, *CUT, *chosen, "--out", str(out), "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert [run["policy"] for run in comparison["runs"]] == ["process/process", "delay/delay"]
    assert len(comparison["table"]) == 2
    assert main(["verify", *options, *CUT, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["same"] and verdict["first_difference"] is None and len(verdict["runs"]) == 2


def test_verify_prints_the_first_difference(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *options, "--fault", "stop a at 1s"]) == 1
    assert re.search(r"the first difference is in line \d+", capsys.readouterr().out)


def test_verify_of_nothing_is_not_a_success(options: list[str], query: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query.write_text(query.read_text().replace("v > 10", "v > 1e9"))
    assert main(["verify", *options, *CUT]) == NOTHING_COMPARED
    assert "nothing was compared" in capsys.readouterr().out


@pytest.mark.parametrize("command", [command.callback.__name__ for command in app.app.registered_commands if command.callback])
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"Example: boreal {command}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("given", [[], ["query"]])
def test_without_a_command_there_is_help_and_no_error(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    shown = capsys.readouterr()
    assert "Commands" in shown.out and shown.err == ""


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "boreal 1.2.3\n"


CONSOLE_SCRIPT = "import sys; from boreal_cli import main; sys.exit(main())"


@pytest.mark.parametrize("way", every(2, ["console script", "module"]))
def test_the_current_directory_may_hold_packages_that_are_called_as_ours_are(
    way: str, options: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "boreal"
    script.parent.mkdir()
    script.write_text(CONSOLE_SCRIPT)
    command = ["-m", "boreal"] if way == "module" else [str(script)]
    directory = make_foreign_packages(tmp_path / "application")
    ran = run_python(directory, *command, "run", *options, *CUT, "--out", "out", "--json")
    assert ran.returncode == 0 and ran.stdout == (directory / "out" / "report.json").read_text()
    asked = run_python(directory, *command, "status", "--json", "--data", "none")
    assert (json.loads(asked.stdout)["ready"], asked.stderr, asked.returncode) == (False, "", 1)


@pytest.mark.parametrize("where", ["before ours", "nowhere"])
def test_what_cannot_be_imported_is_told_with_its_cause(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder called services in PYTHONPATH; or the stack's packages are not installed."""
    name = "services.stack" if where == "before ours" else "redis"
    if where == "before ours":
        other = ModuleType("services")
        other.__path__ = [str(tmp_path / "services")]
        monkeypatch.setitem(sys.modules, "services", other)

    def cannot_be_imported(name_: str, *_: object) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("boreal_cli.benches.find", cannot_be_imported)
    assert main(["bench", "core", "--json"]) == 2
    error = error_of(capsys)
    if where == "before ours":
        assert (error["field"], error["value"]) == ("PYTHONPATH", str(tmp_path / "services"))
        assert error["fix"] == f"remove {tmp_path} from PYTHONPATH"
    else:
        assert (error["value"], error["fix"]) == ("redis", "run pip install 'boreal[stack]'")


def test_help_loads_nothing_heavy() -> None:
    check = "import sys, boreal_cli; print(sorted({'pyarrow', 'numpy', 'services', 'sqlglot'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_the_lock_covers_what_pyproject_names_and_no_host() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[ ]", entry)[0].lower() for entry in wanted}
    lock = (ROOT / "requirements-dev.txt").read_text()
    assert names <= {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert "://" not in lock
