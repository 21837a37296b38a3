"""`python -IS tied.py PARENT COMMAND...`: becomes COMMAND, tied to the process PARENT: when that dies, however it dies, the
kernel kills this one. Standard library only, and little of it: this stands before every process that the supervisor starts.

Where the kernel offers no such thing (macOS), it only becomes COMMAND; `boreal down` still finds what is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # A parent that died before this call is one that nobody would tell us of.
        if os.getppid() != parent:
            sys.exit(f"the process {parent} that was to look after {command[0]} is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
