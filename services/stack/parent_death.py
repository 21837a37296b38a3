"""`python -IS parent_death.py PARENT COMMAND...`: executes COMMAND in this process, and asks the kernel to kill it when the
process PARENT dies. It imports little, and only the standard library, because it runs before every process that the supervisor
starts.

If the kernel has no such call (macOS), it only executes COMMAND; `boreal down` still finds processes that are left.
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
        # The kernel does not report a parent that died before this call.
        if os.getppid() != parent:
            sys.exit(f"the parent process {parent} of {command[0]} has ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
