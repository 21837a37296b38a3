"""boreal's commands in the process of the tests: another interpreter would take most of a command's time for its imports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from threading import current_thread, main_thread
from unittest.mock import patch

from boreal_cli import main


def run_command(arguments: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that starts no process that outlives it. environment: all of it; None: that of the tests. For the main
    thread alone: stdout and the environment are the process's, so two commands at a time would take each other's."""
    assert current_thread() is main_thread()
    out, err = StringIO(), StringIO()
    variables = os.environ if environment is None else environment
    with patch.dict(os.environ, dict(variables), clear=True), redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
