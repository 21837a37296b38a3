"""`python tests/stack/wrong_wall.py LIVES SECONDS,... MODULE ARGUMENT ...`: runs a module as `python -m` would, on a machine
whose wall clock is ahead by so many seconds. Each life takes the next number, the first again after the last; the file LIVES
counts them."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path


def main() -> None:
    lives, seconds, module, *arguments = sys.argv[1:]
    with Path(lives).open("ab+") as file:
        life = file.tell()
        file.write(b".")
    choice = [float(ahead) for ahead in seconds.split(",")]
    ahead_ns = int(choice[life % len(choice)] * 1e9)
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + ahead_ns / 1e9
    time.time_ns = lambda: right_ns() + ahead_ns
    sys.path[0] = os.getcwd()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
