"""The events that an instance takes, and the effects that it returns. It has no other input or output.

The driver passes events to `Instance.handle(event, now)`, and performs the returned effects in list order. Readers pull from
logs: `Follow` asks for a log from a stable id on, and the driver then delivers its `Frames` as they come. A log that is only
`Watch`ed delivers its newest boundary, as `Tail`.

Clock values are microseconds of the run clock. A partition of a stream is named 'stream/partition'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from boreal.model.frames import Frame, LogId, State
from boreal.query.plan import Plan
from reconcile.orders import Answer, Order, Place


class InstanceId(NamedTuple):
    """The name of an instance: one (fragment, replica, shard). Instances share no state."""

    fragment: str
    """The name of the fragment."""
    replica: str
    """The name of the replica, such as 'r0'."""
    shard: int
    """The number of the shard, from 0."""

    def __str__(self) -> str:
        return f"{self.fragment}.{self.replica}.{self.shard}"


# Control messages between instances


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A partner is alive, and in this state. It is sent once every heartbeat interval and at each change of state."""

    sender: InstanceId
    """The partner."""
    state: State
    """Its state. A partner whose host has stopped sends RECOVERING, so that no peer waits for the end of its correction
    (R22)."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """The sender asks the receiver to stay live while the sender reconciles (R22)."""

    sender: InstanceId
    """The instance that wants to reconcile."""


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """The sender promises to stay live until the receiver has reconciled."""

    sender: InstanceId
    """The instance that stays live."""


@dataclass(frozen=True, slots=True)
class LeaseDenial:
    """The sender refuses a lease: it reconciles itself, or holds a lease, or has the lower replica number of two crossing
    requests."""

    sender: InstanceId
    """The instance that was asked."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """The holder has reconciled, or has withdrawn its request. The lessor is free again."""

    sender: InstanceId
    """The instance that held the lease, or asked for it."""


@dataclass(frozen=True, slots=True)
class PathAfter:
    """A reader tells its producer the latency of the rest of the path, from the producer's release of a frame on (R9)."""

    sender: InstanceId
    """The reader."""
    key: str
    """The input partition that it reads, 'stream/partition'."""
    micros: int
    """The latency, in microseconds."""


Message = Heartbeat | LeaseRequest | LeaseGrant | LeaseDenial | LeaseEnd | PathAfter

# Events


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a followed log, in order."""

    log: LogId
    """The log."""
    items: tuple[tuple[int, Frame], ...]
    """(offset, frame), in rising order of offsets."""
    end: int
    """The end of the log (its next offset), as known when the frames were read."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest boundary of a watched log that is not followed."""

    log: LogId
    """The log, which is watched and not followed."""
    frame: Frame
    """Its newest boundary."""


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The answer to a `Read`."""

    log: LogId
    """The log that was read."""
    token: int
    """The token of the `Read`."""
    items: tuple[tuple[int, Frame], ...]
    """(offset, frame), in rising order of offsets; empty if the log has no further frame yet."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A log does not have the rows that were asked for: they were trimmed, or its writer skipped them (R27)."""

    log: LogId
    """The log."""


@dataclass(frozen=True, slots=True)
class Received:
    """A control message of another instance has arrived."""

    message: Message
    """The message."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The user has set a new delay threshold X. It applies at once, with the intervals that follow from it. Fields of the plan,
    in microseconds."""

    delay_threshold_us: int
    """X."""
    boundary_interval_us: int
    """The interval between the boundaries of a source."""
    heartbeat_us: int
    """The interval between heartbeats."""
    silence_us: int
    """The silence timeout."""
    calm_pause_us: int
    """How much longer than usual a calm instance may be silent."""

    @staticmethod
    def of(plan: Plan) -> Threshold:
        """What a plan says of them."""
        intervals = plan.boundary_interval_us, plan.heartbeat_us, plan.silence_us, plan.calm_pause_us
        return Threshold(plan.delay_threshold_us, *intervals)


@dataclass(frozen=True, slots=True)
class Near:
    """Which logs are read with the least delay from here. Of equally good replicas the nearest is read (R23)."""

    logs: frozenset[LogId]
    """Of each input with several replicas, the logs that the instance's own process writes, or else those that its own site
    stores. They replace what was said before."""


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """The store has confirmed a checkpoint. An upload that has not finished counts as absent (R19)."""

    number: int
    """The number of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The operator host in another process has executed an order. Repeated answers are dropped."""

    place: Place
    """The place of the order."""
    answer: Answer
    """The answer of the host."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Only this event makes the instance process rows."""

    heard_until: int | None = None
    """Clock value. If events still wait to be passed, the time when the first of them came: all earlier events were passed.
    None if no event waits."""


Event = Frames | Tail | ReadDone | Unavailable | Received | Threshold | Near | CheckpointStored | Answered | Tick

# Effects


@dataclass(frozen=True, slots=True)
class Append:
    """Append a frame to an own output log."""

    log: LogId
    """The log."""
    frame: Frame
    """The frame."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Deliver this log from the frame that holds the stable id after_id + 1 on, without what an UNDO has revoked (R23)."""

    log: LogId
    """The log."""
    after_id: int
    """The last stable id that the reader has; -1 for none."""


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Stop the delivery of a followed log."""

    log: LogId
    """The log."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Deliver the newest boundary of a log, as `Tail`, while the log is not followed."""

    log: LogId
    """The log."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the stable frames of a log once, from the frame that holds the stable id after_id + 1 on."""

    log: LogId
    """The log."""
    after_id: int
    """The last stable id that the reader has; -1 for none."""
    max_bytes: int
    """About how much to read, in bytes."""
    token: int
    """The number of this request. `ReadDone` repeats it."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control message to another instance."""

    to: InstanceId
    """The receiver."""
    message: Message
    """The message."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """This instance no longer needs the rows below these ids (R26)."""

    positions: tuple[tuple[str, int], ...]
    """For each input: 'stream/partition', and the first id that is still needed."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Rows wait here for boundaries of these source streams: a calm source is to write them at the usual pace for a while
    (R24). If the message is lost, they come a pause later."""

    streams: tuple[str, ...]
    """The streams."""


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Upload a checkpoint in the background. The driver answers with `CheckpointStored` once the store has confirmed it."""

    number: int
    """The number of the checkpoint. Newer checkpoints of an instance have higher numbers."""
    time: int
    """Event time. The state contains all input rows before it."""
    needs: int
    """Event time. An incarnation that begins with this checkpoint processes input rows from here on."""
    next_ids: tuple[tuple[str, int], ...]
    """For each output: 'stream/partition', and the next stable id of the state."""
    inputs: tuple[tuple[str, int], ...]
    """For each input: 'stream/partition', and the first id that such an incarnation must read."""
    state: bytes | None
    """The encoded state. None for a host in another process, which uploads the copy itself under this number."""


@dataclass(frozen=True, slots=True)
class Obey:
    """Log an order for the operator host in another process. Its answer arrives as `Answered`."""

    place: Place
    """The place of the order."""
    order: Order
    """The order."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """For the journal: the instance has entered a state."""

    state: State | None
    """The new state; None if the instance is dead. Readers notice that as silence."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """For the journal: a correction is complete."""

    started: int
    """Clock value at which the correction began, in microseconds."""
    tuples: int
    """The number of input rows that were processed again."""
    checkpoint_bytes: int
    """The size of the last copy of the state in bytes."""


Effect = (
    Append | Follow | Unfollow | Watch | Read | Send | Acknowledge | Wake | StoreCheckpoint | Obey | StateChanged | Reconciled
)
