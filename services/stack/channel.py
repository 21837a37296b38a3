"""Starts processes that hear what their parent says: their stdin is a socket, whose other end it keeps."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

Started = tuple[subprocess.Popen[bytes], socket.socket]
"""A process, and the other end of its stdin."""


def start_with_channel(start: Callable[[int], subprocess.Popen[bytes]]) -> Started:
    """start(stdin): starts the process, with this descriptor as its stdin. Raises what it raises."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return start(theirs.fileno()), ours
        except BaseException:
            ours.close()
            raise
