"""`python -m services.stack.spare`: imports all that a worker, or a process of a query, needs, and then becomes one on request.

Imports take most of the start of such a process, and on a busy machine longer than X. So the supervisor keeps a spare for the
next process that dies. The spare waits for one line of JSON on stdin, a socket, which `services.stack.spare_keeper` writes; at
the end of stdin it ends. A worker that it becomes goes on to read there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence

import services.hosting.fast_imports  # noqa: F401
from services.egress import egress  # noqa: F401
from services.node import node  # noqa: F401
from services.source import options, source  # noqa: F401
from services.worker import worker  # noqa: F401


def main() -> None:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()  # without a buffer: what follows is for the process that it becomes
    if not line:
        return
    request = json.loads(line)
    become(request["module"], request["arguments"], request["environment"], request["log"])


def become(module: str, arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run as `python -m module arguments`. environment: variables to set; log: gets all output."""
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for theirs in (1, 2):
        os.dup2(output, theirs)
    os.close(output)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
