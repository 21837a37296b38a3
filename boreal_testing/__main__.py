"""`python -m boreal_testing MODULE CLASS PARAMETERS`: repeats the runs of `check_operator` in a process of its own. Streams
come as Arrow IPC, one batch each; their digests are printed, one in a line."""

from __future__ import annotations

import json
import sys
from functools import reduce
from importlib import import_module

import pyarrow as pa

from boreal_testing.checks import digest


def main() -> None:
    module, qualname, parameters = sys.argv[1:]
    operator = reduce(getattr, qualname.split("."), import_module(module))
    for rows in pa.ipc.open_stream(sys.stdin.buffer.read()):
        print(digest(operator, rows, json.loads(parameters)))  # type: ignore[arg-type]


main()
