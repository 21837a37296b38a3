"""How processes log: text for people, or JSON lines for programs, as BOREAL_LOG_FORMAT says."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, TextIO

from boreal.model.errors import UserError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """One event a line, an object with the same fields in every process:

    time: ISO 8601 in UTC, with milliseconds, by the machine's clock. level: as in LEVELS, or CRITICAL. process: its name, as in
    `boreal status`. kind, query: of the process; query is null where it serves none, or several. thread: its name, which in a
    worker begins with the query or the role. logger, message: as in text.
    facts: an object with what the message says, where it is one that programs look for; {} otherwise.
    error: a traceback, or null.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        kind, _, rest = process.partition(".")
        query = None if kind == "worker" else rest.partition(".")[0] or None
        self._own = {"process": process, "kind": kind, "query": query}

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            **self._own,
            "thread": record.threadName,
            "logger": record.name,
            "message": record.getMessage(),
            "facts": getattr(record, "facts", {}),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return json.dumps(fields, ensure_ascii=False, default=str)


class LineHandler(logging.Handler):
    """Writes each event at once, with one call of the system, and without a lock: many threads log at the moments at which a
    process has the most to do, and would wait for whoever the interpreter has stopped while it held the lock."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        try:
            self._file: int | None = stream.fileno()
        except (OSError, ValueError):
            self._file = None  # a stream in memory

    def createLock(self) -> None:
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n"
            if self._file is None:
                self._stream.write(line)
                return
            left = line.encode(errors="backslashreplace")
            while left:
                left = left[os.write(self._file, left) :]
        except Exception:
            self.handleError(record)


def facts(**fields: Any) -> dict[str, Any]:
    """What a message says, for programs: `logger.info(text, ..., extra=facts(instance=...))`."""
    return {"facts": fields}


def set_up_logging(process: str, stream: TextIO | None = None) -> None:
    """Log all events of this process, as the environment says; to stderr, if no stream is given. UserError for a level or a
    format that does not exist."""
    level = _chosen("BOREAL_LOG_LEVEL", "INFO", LEVELS)
    if _chosen("BOREAL_LOG_FORMAT", "text", FORMATS) == "json":
        formatter: logging.Formatter = JsonLines(process)
    else:
        # Roles of several queries share a worker: the name of the thread says which one speaks.
        speaker = f"{process}/%(threadName)s" if process.startswith("worker.") else process
        formatter = logging.Formatter(f"%(asctime)s %(levelname)s {speaker} %(name)s: %(message)s")
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])


def _chosen(variable: str, default: str, choices: tuple[str, ...]) -> str:
    value = os.environ.get(variable) or default
    if value not in choices:
        raise UserError(variable, value, "is not a choice", f"write one of {', '.join(choices)}")
    return value
