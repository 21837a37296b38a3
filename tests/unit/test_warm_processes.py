"""A process that is forked off a warm server is to its user what one started from nothing is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.warm_processes import WarmProcess, start_process


def test_it_ends_with_the_same_words_and_code(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "services.source")
    cold = subprocess.run(command, capture_output=True, text=True, timeout=60)
    log = tmp_path / "warm.log"
    process = start_process(command, os.environ, log)
    assert isinstance(process, WarmProcess)
    assert (process.wait(60), process.poll()) == (cold.returncode, cold.returncode)
    assert cold.returncode != 0 and log.read_text().splitlines()[-1] == cold.stderr.splitlines()[-1]


def test_it_is_waited_for_and_killed(tmp_path: Path) -> None:
    nowhere = {"BOREAL_SITES__A__BOOTSTRAP": "127.0.0.1:9", "BOREAL_DATA": str(tmp_path)}
    process = start_process((sys.executable, "-m", "services.monitor"), nowhere, tmp_path / "log")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.kill()  # does nothing to whoever has its number now
