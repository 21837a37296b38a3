"""What every driver says of an instance, as fields of a status (`deployment.status_fields.NODE`, `instances`)."""

from __future__ import annotations

from typing import Any

from reconcile.status import Status


def instance_fields(status: Status, now_us: int) -> dict[str, Any]:
    """The fields that follow from the instance's own status; now_us: a clock value."""
    return {
        "x_ms": status.delay_threshold_us / 1_000,
        "alpha_x_ms": status.alpha_x_us / 1_000,
        "least_x_ms": status.least_threshold_us / 1_000,
        "engine_ms": status.engine_latency_us / 1_000,
        "path_after_ms": status.path_after_us / 1_000,
        "missing": list(status.missing),
        "position": status.position,
        "held_rows": status.held_rows,
        "checkpoint_bytes": status.checkpoint_bytes,
        "inputs": [
            {
                "name": entry.key,
                "boundary": entry.boundary,
                "silent": entry.silent,
                "failed": entry.failed,
                "read_from": entry.read_from,
                "skew_ms": entry.skew_us / 1_000,
                "hop_ms": entry.hop_us / 1_000,
                "silent_for_ms": max(now_us - entry.heard_at, 0) / 1_000,
            }
            for entry in status.inputs
        ],
    }
