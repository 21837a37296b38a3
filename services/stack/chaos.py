"""Faults of a local stack that somebody asks for: by files in DATA/run/faults, which the supervisor obeys.

The supervisor has the links and the processes, so it also undoes every fault in time, whatever becomes of who asked for it. If
the supervisor dies, all its processes die with it, and no fault outlasts them.
"""

from __future__ import annotations

import json
import logging
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boreal.model.errors import BorealError
from embedded.faults import Fault
from services.stack.links import ProxyLink
from services.stack.state import replace_file

TAKEN_WITHIN_S = 5.0
HEAL = "heal"
"""What is asked for to end faults before their time."""
_LOOK_S = 0.02

_logger = logging.getLogger("boreal.chaos")


class FaultRefused(BorealError):
    """The supervisor does not obey: it has ended, or was started without chaos."""


def request_fault(
    data: Path, fault: Fault, processes: Sequence[str], *, text: str = "", query: str | None = None, by: str | None = None
) -> str:
    """Ask the supervisor of a stack for a fault of these processes; returns the fault's id once it has begun. FaultRefused if
    it does not begin within five seconds; it will not begin later then. A replica that is cut from one stream loses only its
    link to this stream's log. text, query, by: for its events."""
    kind = "cut" if fault.kind in ("cut_stream", "cut_replica") else fault.kind
    for_s = (fault.for_us or 0) / 1e6
    stream = fault.stream if fault.to_replica else ""
    asked = {"kind": kind, "processes": list(processes), "stream": stream, "by_s": fault.by_us / 1e6, "for_s": for_s}
    return _ask(data, {**asked, "fault": text, "query": query, "by": by})


def request_heal(data: Path, healed: Sequence[tuple[str, str]]) -> None:
    """Ask the supervisor to undo faults before their time: all of each process, stream pair. For the stream '' those of the
    process as a whole, else those of its link to this stream's log. Returns once they are undone. FaultRefused."""
    _ask(data, {"kind": HEAL, "healed": list(healed)})


def _ask(data: Path, asked: Mapping[str, Any]) -> str:
    """Returns the id under which the supervisor took it."""
    fault_id = secrets.token_hex(4)
    path = _directory(data) / f"{fault_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(asked))
    deadline = time.monotonic() + TAKEN_WITHIN_S
    while path.exists():
        if time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            raise FaultRefused("the supervisor does not take faults now")
        time.sleep(_LOOK_S)
    return fault_id


SAID_FOR_MS = 60_000.0
"""A fault that is over is reported for so long, so that it is recorded even if nobody listens for a while."""


@dataclass(eq=False, slots=True)
class _ActiveFault:
    id: str
    kind: str
    process: str
    stream: str  # if only its link to this stream's log is concerned
    by_s: float
    ends_at: float


class FaultDesk:
    """The supervisor's part; only for its main thread. Call `turn` often."""

    def __init__(
        self,
        data: Path,
        links: Callable[[str, str], Iterable[ProxyLink]],
        send_signal: Callable[[str, signal.Signals], None],
    ) -> None:
        """links(process, stream): the process's link to the stream's log, or all its links for the stream ''. send_signal: to a
        process that runs."""
        self._directory = _directory(data)
        self._links = links
        self._send_signal = send_signal
        self._active: list[_ActiveFault] = []
        self._reported: dict[str, dict[str, Any]] = {}
        for stale in self._directory.glob("*.json"):
            stale.unlink(missing_ok=True)

    @property
    def held(self) -> frozenset[str]:
        """The processes that have crashed and must not be started yet."""
        return frozenset(fault.process for fault in self._active if fault.kind == "crash")

    def turn(self) -> None:
        """Begin or end what is asked for, and undo what is over."""
        for path in sorted(self._directory.glob("*.json")):
            try:
                asked = json.loads(path.read_text())
            except (OSError, ValueError) as error:
                _logger.warning("%s cannot be read: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            if asked["kind"] == HEAL:
                self._end([(process, stream) for process, stream in asked["healed"]])
            else:
                self._begin(path.stem, asked)
            self._undo_what_is_over()
            path.unlink(missing_ok=True)
        self._undo_what_is_over()

    def _end(self, healed: Collection[tuple[str, str]]) -> None:
        """Let the faults of these processes and streams be over now."""
        for fault in self._active:
            if (fault.process, fault.stream) in healed:
                fault.ends_at = time.monotonic()

    def _undo_what_is_over(self) -> None:
        now = time.monotonic()
        for fault in [fault for fault in self._active if fault.ends_at <= now]:
            self._active.remove(fault)
            self._undo(fault)
            if not any(other.id == fault.id for other in self._active):
                self._reported[fault.id]["ended_ms"] = time.time() * 1_000

    def report(self) -> list[dict[str, Any]]:
        """The faults that are active, and those that were lately, for the supervisor's status."""
        ended_before = time.time() * 1_000 - SAID_FOR_MS
        for id_, fault in list(self._reported.items()):
            if fault["ended_ms"] is not None and fault["ended_ms"] < ended_before:
                del self._reported[id_]
        return [dict(fault) for fault in self._reported.values()]

    def _begin(self, id_: str, asked: Mapping[str, Any]) -> None:
        _logger.warning("fault: %s %s for %s s", asked["kind"], ", ".join(asked["processes"]), asked["for_s"])
        begun_ms = time.time() * 1_000
        self._reported[id_] = {
            "id": id_,
            "fault": asked["fault"],
            "query": asked["query"],
            "targets": asked["processes"],
            "by": asked["by"],
            "begun_ms": begun_ms,
            "ends_at_ms": begun_ms + asked["for_s"] * 1_000,
            "ended_ms": None,
        }
        ends_at = time.monotonic() + asked["for_s"]
        for process in asked["processes"]:
            fault = _ActiveFault(id_, asked["kind"], process, asked["stream"], asked["by_s"], ends_at)
            self._active.append(fault)
            self._strike(fault)

    def _strike(self, fault: _ActiveFault) -> None:
        match fault.kind:
            case "cut":
                for link in self._links(fault.process, fault.stream):
                    link.cut()
            case "slow":
                for link in self._links(fault.process, fault.stream):
                    link.slow(fault.by_s)
            case "freeze":
                self._send_signal(fault.process, signal.SIGSTOP)
            case "crash":
                self._send_signal(fault.process, signal.SIGKILL)

    def _undo(self, fault: _ActiveFault) -> None:
        """Undo a fault; what others do to the same process stays."""
        _logger.warning("fault over: %s %s", fault.kind, fault.process)
        others = [other for other in self._active if other.process == fault.process]
        if fault.kind in ("cut", "slow"):
            for link in self._links(fault.process, fault.stream):
                link.heal()
            for other in others:
                if other.kind in ("cut", "slow"):
                    self._strike(other)
        elif fault.kind == "freeze" and not any(other.kind == "freeze" for other in others):
            self._send_signal(fault.process, signal.SIGCONT)


def _directory(data: Path) -> Path:
    return data / "run" / "faults"
