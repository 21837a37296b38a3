"""Where a new incarnation of an instance begins, from what the logs and the checkpoint store hold (R25-R27).

Read once, before the instance is created. The rules themselves are in `reconcile.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from boreal.model.frames import Anchor, Data, LogId
from logs.checkpoints import Checkpoint, CheckpointStore
from logs.log import Log, TrimmedError
from reconcile.events import InstanceId
from reconcile.recovery import FROM_THE_FIRST, Beginning, Restart, VerifiedCheckpoint, plan_restart
from sunion.tape import BEGINNING

OpenLog = Callable[[LogId], Log]
"""Opens a log, as `LogStore.open`."""
HoldsRows = Callable[[Sequence[LogId], int], bool]
"""Whether one of these logs (of a stream's replicas) still holds the stable rows from an id on."""


def saved_by(store: CheckpointStore, who: InstanceId) -> VerifiedCheckpoint | None:
    """An instance's newest undamaged checkpoint; None if there is none."""
    found = store.latest(str(who))
    return None if found is None else verified(found)


def verified(found: Checkpoint) -> VerifiedCheckpoint:
    """A checkpoint that a store has given: it has compared the digest."""
    return VerifiedCheckpoint(
        found.time, found.needs, found.next_ids, found.inputs, found.state, (found.instance, found.number)
    )


def restarts(
    who: InstanceId,
    replicas: Sequence[tuple[Sequence[LogId], VerifiedCheckpoint | None]],
    inputs: Mapping[str, Sequence[LogId]],
    open_log: OpenLog,
    is_held: HoldsRows | None = None,
    beginning: Beginning = FROM_THE_FIRST,
) -> Iterator[Restart]:
    """The positions where `who` may begin, the best first: from its own logs and checkpoint, then from its partners'.

    replicas: for the instance, then for each partner: the logs that it writes (in the same order) and its checkpoint.
    inputs: each replica's log, by 'stream/partition'. is_held: checks logs where opening one may fail; default: all logs can
    be opened. A position is omitted if an input has no log that still holds the rows that the position needs.
    """
    own = [open_log(log) for log in replicas[0][0]]
    incarnation = max(log.last_incarnation for log in own) + 1
    tails = [tail for tail in (log.tail() for log in own) if tail is not None]
    epoch = max((tail.epoch for tail in tails), default=-1)
    written = {log.id.key: log.next_stable_id for log in own}
    written_to = {log.id.key: last_time(log) for log in own}
    for logs, saved in replicas:
        anchor = oldest_anchor(open_log(log) for log in logs)
        for place in plan_restart(incarnation, epoch, written, anchor, saved, beginning):
            if can_serve(place, inputs, is_held or make_hold_check(open_log)):
                yield replace(place, written_to=written_to)


def oldest_anchor(logs: Iterable[Log]) -> Anchor | None:
    """The oldest of the last anchors of an instance's logs: all of its logs certainly reach that point. None if a log has no
    anchor."""
    anchors = [log.last_anchor() for log in logs]
    found = [anchor for anchor in anchors if anchor is not None]
    return min(found, key=lambda anchor: anchor.time) if len(found) == len(anchors) else None


def can_serve(restart: Restart, inputs: Mapping[str, Sequence[LogId]], is_held: HoldsRows) -> bool:
    """Whether every input has a log that still holds the rows that this position needs."""
    return all(is_held(candidates, restart.inputs.get(key, 0)) for key, candidates in inputs.items())


def make_hold_check(open_log: OpenLog) -> HoldsRows:
    """A `HoldsRows` for logs that can always be opened."""
    return lambda logs, first_id: any(holds(open_log(log), first_id) for log in logs)


def holds(log: Log, first_id: int) -> bool:
    """Whether a log still holds the stable rows from an id on. A log that has not reached the id is not the log of that id: its
    topic was created again, or a broker lost its end. Its next rows would wrongly be taken for known ones."""
    if first_id > log.next_stable_id:
        return False
    try:
        log.offset_after(first_id - 1)
    except TrimmedError:
        return False
    return True


def last_time(log: Log) -> int:
    """The event time up to which a log has its stable rows: of its last row, or of its last stable boundary if later."""
    anchor = log.last_anchor()
    promised = anchor.time - 1 if anchor is not None else BEGINNING
    try:
        found = log.read(log.offset_after(log.next_stable_id - 2), 1) if log.next_stable_id else []
    except TrimmedError:
        return promised
    frame = found[0][1] if found else None
    return max(promised, int(frame.batch.column(0)[-1].as_py())) if isinstance(frame, Data) else promised
