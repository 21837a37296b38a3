"""Logs: where the frames of one (stream, partition, replica) are kept until all readers are done with them."""

from services.log.base import Log, LogStore, Trimmed

__all__ = ["Log", "LogStore", "Trimmed"]
