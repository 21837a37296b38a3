"""Where X goes, and what held-back results wait for: from what the instances of a query say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boreal.model.frames import State
from boreal.query.plan import Plan
from formats.json_text import moment

PARTS = ("source", "transport", "hold", "engine", "egress", "reserve")


def explanation(plan: Plan, status: Mapping[str, Any], instances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One bar of length X, of the instance that may hold buckets back for the shortest time, and such a bar for each instance,
    with the bucket that each waits with. instances: as `Installation.instances` returns them."""
    shown = [_instance(plan, status, entry) for entry in instances]
    known = [entry for entry in shown if entry["hold_ms"] is not None]
    tightest = min(known, key=lambda entry: float(entry["hold_ms"]), default=None)
    return {
        "name": plan.query,
        "state": status["state"],
        "x_ms": plan.delay_threshold_us / 1_000,
        "parts": tightest["parts"] if tightest is not None else _parts(plan, {}),
        "waits": [wait for entry in shown for wait in entry["waits"]],
        "tentative": status["tentative"],
        "instances": shown,
    }


def _instance(plan: Plan, status: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    hold_ms = entry.get("alpha_x_ms")
    who = {field: entry[field] for field in ("fragment", "replica", "shard", "state")}
    wait = _wait(plan, status, entry)
    waits = [{**who, **wait}] if wait is not None else []
    return {**who, "hold_ms": hold_ms, "parts": _parts(plan, entry), "waits": waits}


def _parts(plan: Plan, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of X in the order in which a row passes them. Those that are within another do not count in the sum; a length
    is null where it is not measured.

    Deadlines count from the ingest of a row, so that the time until it arrives, and until its bucket is full and its boundary
    comes, is within the hold. The egress is all that follows the operators: Kafka, later fragments, and the egress itself, as
    the instance's readers have measured it. What these leave of X is the reserve, which clocks that differ use up first.
    """
    x_ms = plan.delay_threshold_us / 1_000
    hold_ms, engine_ms, after_ms = (entry.get(field) for field in ("alpha_x_ms", "engine_ms", "path_after_ms"))
    egress_ms = reserve_ms = None
    if hold_ms is not None and engine_ms is not None and after_ms is not None:
        # What was measured since the hold was set may be longer than what X has left.
        left_ms = max(x_ms - hold_ms - engine_ms, 0.0)
        egress_ms = min(after_ms, left_ms)
        reserve_ms = left_ms - egress_ms
    lengths: dict[str, tuple[float | None, str | None]] = {
        "source": (plan.completion_us / 1_000, "hold"),
        "transport": (max((each.get("hop_ms", 0.0) for each in entry.get("inputs", ())), default=None), "hold"),
        "hold": (hold_ms, None),
        "engine": (engine_ms, None),
        "egress": (egress_ms, None),
        "reserve": (reserve_ms, None),
    }
    return [{"name": name, "ms": lengths[name][0], "within": lengths[name][1]} for name in PARTS]


def _wait(plan: Plan, status: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """The oldest bucket that an instance holds back, and the inputs that it waits for: those whose boundary has not passed it
    while another's has, or that are missing. None if it waits for nothing."""
    inputs, position = entry.get("inputs", ()), entry.get("position")
    boundaries = [each["boundary"] for each in inputs if each["boundary"] is not None]
    if position is None or not boundaries:
        return None
    begin = position // plan.bucket_us * plan.bucket_us
    end = begin + plan.bucket_us
    late = [each for each in inputs if each["boundary"] is None or each["boundary"] < end]
    is_missing = bool(entry.get("missing"))
    if not late or (max(boundaries) < end and not is_missing):
        return None
    waited_ms = max(float(each["silent_for_ms"]) for each in late)
    is_tentative = entry["state"] != State.STABLE.value and bool(status["tentative"]["outstanding"])
    left_ms = 0.0 if is_tentative else max(float(entry["alpha_x_ms"]) - waited_ms, 0.0)
    return {
        "bucket": {"from": _moment(begin), "to": _moment(end)},
        "for": [{"name": each["name"], "silent_for_ms": each["silent_for_ms"], "failed": each["failed"]} for each in late],
        "waited_ms": waited_ms,
        "is_tentative": is_tentative,
        "tentative_in_ms": left_ms,
    }


def _moment(at_us: int) -> str | None:
    """None for a time that no calendar has, as before the first boundary."""
    try:
        return moment(at_us)
    except (ValueError, OverflowError):
        return None
