"""What a process that is to be there soon leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.thoroughness import every

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("egress", "monitor", "node", "source")

PROGRAM = """
import {module}
import gc, sys
import pyarrow as pa
from services.hosting.process import run_process

def serve(stopping):
    assert pa.array([1, 2]).to_pylist() == [1, 2] and pa.scalar(3).as_py() == 3
    print("pandas" in sys.modules, gc.isenabled(), flush=True)
    return 0

run_process("test", serve)
"""


@pytest.mark.parametrize("module", every(2, [*(f"services.{kind}.__main__" for kind in KINDS), "api.__main__"]))
def test_a_process_that_is_waited_for_imports_no_pandas(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (said.stdout, said.stderr, said.returncode) == ("False True\n", "", 0)


@pytest.mark.parametrize("module", every(2, ["services.stack.supervisor", "services.stack.operations", "boreal_cli.stack"]))
def test_what_does_without_pandas_only_by_converting_nothing_imports_none(module: str) -> None:
    """The supervisor, and commands on a stack. pyarrow imports pandas, if it is installed, for the first value of Python's."""
    command = [sys.executable, "-c", f"import sys, {module}; print('pandas' in sys.modules)"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout == "False\n"
