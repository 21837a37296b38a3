"""What an instance says of itself: all that its driver, its process's status and its tests may know of it."""

from __future__ import annotations

from dataclasses import dataclass

from boreal.model.frames import State
from reconcile.events import InstanceId


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input partition.

    key: 'stream/partition'. boundary: its stable boundary, in event time; next_id: the stable id that it needs next.
    silent, failed: see `sunion.port.Port`. read_from: the replica whose log is the visible one, '' for a source's; heard_at:
    when that log was last heard, in run time. skew_us: how far the instance's clock is behind those that stamped what it
    read. producers: the instances that write its logs, none for a source.
    """

    key: str
    boundary: int
    next_id: int
    silent: bool
    failed: bool
    read_from: str
    heard_at: int
    skew_us: int
    producers: tuple[InstanceId, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """An instance as it is now; durations in microseconds of run time.

    incarnation: of this life. delay_threshold_us: X; least_threshold_us: the smallest X that leaves time to hold a bucket
    back; alpha_x_us: alpha*X. skew_us: how far its clock is behind the others; engine_latency_us: how long its operator host
    takes for an order at worst; is_engine_busy: orders wait for their answers. missing: the inputs that tentative output
    lacks. position: all rows before this event time are processed, as stable ones; stable_through: through where all inputs
    are stable, down to a bucket's start. is_tentative: tentative output is not yet corrected; is_redoing: it is being
    corrected; redo_tuples: how many input rows the last correction has handed on again.
    """

    state: State
    incarnation: int
    delay_threshold_us: int
    least_threshold_us: int
    alpha_x_us: int
    skew_us: int
    engine_latency_us: int
    is_engine_busy: bool
    missing: tuple[str, ...]
    position: int
    stable_through: int
    is_tentative: bool
    is_redoing: bool
    redo_tuples: int
    inputs: tuple[InputStatus, ...]
