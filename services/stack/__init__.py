"""The local stack: servers that are fetched and started on this machine, the supervisor, and operations.

Touches processes, disks and sockets of 127.0.0.1.
"""
