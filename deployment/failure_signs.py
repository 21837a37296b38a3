"""The signs of failures in what processes say of themselves: their statuses in, events out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from boreal.model.frames import State
from deployment.events import RecordedEvent
from deployment.failure_recorder import SILENT, Clients, FailureRecorder
from deployment.skew import ProcessStatus

CHANGES_KEPT = 8
"""How many of its last changes of state an instance reports: enough for those between two statuses that are heard."""


def note_change(changes: list[tuple[str, float]], state: str, at_ms: float) -> None:
    """Add a change of state to those that an instance reports, at a time that rises."""
    changes.append((state, max(at_ms, changes[-1][1] + 0.001) if changes else at_ms))
    del changes[:-CHANGES_KEPT]


def see_node(recorder: FailureRecorder, status: ProcessStatus, now_ms: float) -> list[RecordedEvent]:
    """The status of a node, just heard."""
    events: list[RecordedEvent] = []
    for entry in status["instances"]:
        name = f"{entry['fragment']}.{entry['replica']}.{entry['shard']}"
        inputs = entry.get("inputs", ())
        failed = [each for each in inputs if each["failed"]]
        missing = sorted({*entry["missing"], *(each["name"].partition("/")[0] for each in failed)})
        silent = [each["silent_for_ms"] for each in failed if each["silent"]]
        since_ms = round(now_ms - max(silent), 3) if silent else None
        events += _see_instance(recorder, name, entry, missing, since_ms, now_ms)
        reads = {each["name"]: each["read_from"] for each in inputs if each["read_from"]}
        events += recorder.see_reads(name, reads, now_ms)
    return events


def see_egress(recorder: FailureRecorder, site: str, status: ProcessStatus, now_ms: float) -> list[RecordedEvent]:
    """The status of the egress of a site, just heard."""
    name, held, counts = f"egress.{site}", status.get("tentative", {}), status["counts"]
    events = recorder.see_reads(name, status.get("reads", {}), now_ms)
    told = held.get("outstanding", 0), held.get("since_ms"), held.get("cause")
    clients = Clients(*told, counts["undone"], status["violations"], counts["stable"])
    # A failure that begins now begins with its detection, and it does not end before its rows are counted.
    if recorder.failure is None:
        events += _see_instance(recorder, name, status, status.get("missing", ()), None, now_ms)
        return events + recorder.see_clients(site, clients, now_ms)
    events += recorder.see_clients(site, clients, now_ms)
    return events + _see_instance(recorder, name, status, status.get("missing", ()), None, now_ms)


def see_silent(recorder: FailureRecorder, instances: Iterable[str], now_ms: float) -> list[RecordedEvent]:
    """These instances are silent, though they should not be."""
    return [event for name in instances for event in recorder.see_state(name, SILENT, now_ms)]


def _see_instance(
    recorder: FailureRecorder, name: str, said: ProcessStatus, missing: Iterable[str], since_ms: float | None, now_ms: float
) -> list[RecordedEvent]:
    if said.get("state") is None or said.get("since_ms") is None:
        return []
    if recorder.is_silent(name):
        # It is heard again: that is seen now, whenever it entered its state.
        return recorder.see_state(name, str(said["state"]), now_ms, list(missing), since_ms)
    changes = [(str(state), float(at)) for state, at in said.get("changes") or [(said["state"], said["since_ms"])]]
    events: list[RecordedEvent] = []
    before = None
    for place, (state, at_ms) in enumerate(changes):
        is_now = place == len(changes) - 1
        redo_s = said.get("last_reconciliation_s") if is_now and before == State.STABILIZATION.value else None
        lacks, since = (list(missing), since_ms) if is_now else ([], None)
        events += recorder.see_state(name, state, at_ms, lacks, since, redo_s)
        before = state
    return events + recorder.see_missing(name, list(missing), now_ms, since_ms)
