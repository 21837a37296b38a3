"""What goes into an instance, and what comes out. Nothing else does.

Events are handed to `Instance.handle(event, now)`; the effects it returns are performed by the driver in list order.
Logs are read by their readers: `Follow` asks for a log from a stable id on, and the driver then delivers `Frames` as
they come; a peer's `Watch`ed log delivers only its newest boundary, as `Tail`.
"""

from __future__ import annotations

from dataclasses import dataclass

from boreal.model.frames import Frame, LogId, State
from reconcile.orders import Answer, Order, Place


@dataclass(frozen=True, slots=True, order=True)
class InstanceId:
    """One (fragment, replica, shard); it runs alone and shares nothing."""

    fragment: str
    replica: str
    shard: int

    def __str__(self) -> str:
        return f"{self.fragment}.{self.replica}.{self.shard}"


# Control messages between instances


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A partner's sign of life and its state, once every heartbeat interval and at each change of state."""

    sender: InstanceId
    state: State


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """May I reconcile while you stay live? (R22)"""

    sender: InstanceId


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    sender: InstanceId


@dataclass(frozen=True, slots=True)
class LeaseDenial:
    sender: InstanceId


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """The holder has reconciled, or asks no longer: the lessor is free again."""

    sender: InstanceId


@dataclass(frozen=True, slots=True)
class PathAfter:
    """A reader tells its upstream what the rest of the path takes from the upstream's release on (R9), in microseconds."""

    sender: InstanceId
    key: str
    micros: int


Message = Heartbeat | LeaseRequest | LeaseGrant | LeaseDenial | LeaseEnd | PathAfter

# Events


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a followed log in order; `end`: the log's end (next offset) as known when they were read."""

    log: LogId
    items: tuple[tuple[int, Frame], ...]
    end: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest boundary of a watched log that is not followed."""

    log: LogId
    frame: Frame


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The answer to a `Read`; empty where the log holds nothing further yet."""

    log: LogId
    token: int
    items: tuple[tuple[int, Frame], ...]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A log cannot give what was asked of it: those rows were trimmed, or its writer skipped them (R27)."""

    log: LogId


@dataclass(frozen=True, slots=True)
class Received:
    message: Message


@dataclass(frozen=True, slots=True)
class Threshold:
    """The user has set a new delay threshold X, in microseconds; it holds at once."""

    delay_threshold_us: int


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """A checkpoint has safely arrived in the store; an upload that has not finished counts as absent (R19)."""

    number: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The operator host in another process has obeyed an order; repeats are dropped."""

    place: Place
    answer: Answer


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened. heard_until: where events still wait to be handed over, when the first of them
    came: all that had come before has been. None where nothing waits."""

    heard_until: int | None = None


Event = Frames | Tail | ReadDone | Unavailable | Received | Threshold | CheckpointStored | Answered | Tick

# Effects


@dataclass(frozen=True, slots=True)
class Append:
    log: LogId
    frame: Frame


@dataclass(frozen=True, slots=True)
class Follow:
    """Deliver this log from the frame that holds stable id after_id + 1 on, leaving out what an UNDO has revoked (R23)."""

    log: LogId
    after_id: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    log: LogId


@dataclass(frozen=True, slots=True)
class Watch:
    log: LogId


@dataclass(frozen=True, slots=True)
class Read:
    """Read about max_bytes of a log's stable frames once, from the frame that holds stable id after_id + 1 on."""

    log: LogId
    after_id: int
    max_bytes: int
    token: int


@dataclass(frozen=True, slots=True)
class Send:
    to: InstanceId
    message: Message


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Of these stream partitions, ids below the given ones are needed here no more (R26)."""

    positions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Upload in the background; answer with `CheckpointStored` when it is safe. The state after all input before `time`, made
    with the outputs up to `next_ids`; a life that begins with it reads `inputs` on, from the event time `needs`. state: None
    where the host is in another process, which brings the copy to the store itself, under this number."""

    number: int
    time: int
    needs: int
    next_ids: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Obey:
    """Log an order for the operator host in another process; its answer comes as `Answered`."""

    place: Place
    order: Order


@dataclass(frozen=True, slots=True)
class StateChanged:
    """For the journal: the instance has entered a state; None: it is dead, which readers call silence."""

    state: State | None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """For the journal: a correction is complete. Tuples counted are input rows handed on again."""

    started: int
    tuples: int
    checkpoint_bytes: int


Effect = Append | Follow | Unfollow | Watch | Read | Send | Acknowledge | StoreCheckpoint | Obey | StateChanged | Reconciled
