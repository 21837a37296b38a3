"""What a process that is to be there soon leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import services.{kind}.__main__
import gc, sys
import pyarrow as pa
from services.hosting.process import run_process

def serve(stopping):
    assert pa.array([1, 2]).to_pylist() == [1, 2] and pa.scalar(3).as_py() == 3
    print("pandas" in sys.modules, gc.isenabled(), flush=True)
    return 0

run_process("test", serve)
"""


@pytest.mark.parametrize("kind", ["egress", "node", "source"])
def test_a_process_that_is_waited_for_imports_no_pandas(kind: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(kind=kind)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (said.stdout, said.stderr, said.returncode) == ("False True\n", "", 0)
