"""The status of an instance: all that its driver, the status of its process and its tests may read of it."""

from __future__ import annotations

from typing import NamedTuple

from boreal.model.frames import State
from reconcile.events import InstanceId


class PortStatus(NamedTuple):
    """One input partition."""

    key: str
    """The input partition, 'stream/partition'."""
    boundary: int
    """The event time of its stable boundary, in microseconds."""
    next_id: int
    """The next stable id that the port needs."""
    silent: bool
    """Whether its replica is silent, and more input was to come; see `sunion.port.Port`."""
    failed: bool
    """Whether it is silent, or tentative, or its producer is not STABLE; see `sunion.port.Port`."""
    read_from: str
    """The replica whose log is the visible one; '' for a source."""
    heard_at: int
    """Clock value at which this log was last heard, in microseconds."""
    skew_us: int
    """How far the clock of the instance is behind the clocks that stamped this input, in microseconds."""
    hop_us: int
    """The longest of the latest latencies from its producer to here, in microseconds; 0 before the first."""
    producers: tuple[InstanceId, ...]
    """The instances that write the logs of this input; none for a source."""


class Status(NamedTuple):
    """An instance as it is now. Durations are in microseconds of the run clock, event times in microseconds."""

    state: State
    """The consistency state."""
    incarnation: int
    """The number of this incarnation, counted from 1."""
    delay_threshold_us: int
    """X."""
    least_threshold_us: int
    """The smallest X that leaves time to hold a bucket back."""
    alpha_x_us: int
    """alpha*X: how long a bucket may be held back."""
    skew_us: int
    """How far its clock is behind the clocks that stamped its inputs."""
    engine_latency_us: int
    """The worst latency of an order to the operator host."""
    path_after_us: int
    """The largest latency from here to a client, as the readers have told it; 0 before they have."""
    is_engine_busy: bool
    """Whether orders wait for their answers."""
    missing: tuple[str, ...]
    """The names of the inputs that tentative output lacks."""
    position: int
    """Event time. All rows before it were processed as stable rows."""
    stable_through: int
    """Event time. All inputs are stable up to it. It is rounded down to the start of a bucket."""
    is_tentative: bool
    """Whether tentative output is not corrected yet."""
    is_redoing: bool
    """Whether a correction is running."""
    redo_tuples: int
    """The number of input rows that the last correction has processed again."""
    held_rows: int
    """The rows of its inputs that are in memory: to come yet, or kept for a correction."""
    checkpoint_bytes: int
    """The size of the last copy of its state; 0 before the first."""
    inputs: tuple[PortStatus, ...]
    """The input partitions."""
