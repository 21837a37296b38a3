"""`python -m services.stack.spare`: has imported all that a process of a query's needs, and becomes one when it is told which.

What such a process imports is most of its start, and on a busy machine takes longer than a client may have to wait for
anything. So the supervisor keeps a spare for the next one that dies. It waits for one line of JSON on stdin, which
`services.stack.spare_keeper` makes; at the end of stdin it ends.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

import services.hosting.fast_imports  # noqa: F401
from services.egress import egress  # noqa: F401
from services.node import node  # noqa: F401
from services.source import options, source  # noqa: F401


def main() -> None:
    line = sys.stdin.buffer.readline()
    if not line:
        return
    told = json.loads(line)
    os.environ.update(told["environment"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    os.close(log)
    os.close(nothing)
    sys.argv[1:] = told["arguments"]
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
