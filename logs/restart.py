"""Where an instance begins a new life, by what the logs and the checkpoint store hold (R25-R27).

Read once, before the instance is made; the rules themselves are `reconcile.recovery`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from boreal.model.frames import Anchor, Data, LogId
from logs.checkpoints import CheckpointStore
from logs.log import Log, TrimmedError
from reconcile.events import InstanceId
from reconcile.recovery import Restart, Saved, plan_restart
from sunion.tape import BEGINNING

OpenLog = Callable[[LogId], Log]
HoldsRows = Callable[[Sequence[LogId], int], bool]
"""Whether one of these logs, of a stream's replicas, can still give the stable rows from an id on."""


def saved_by(store: CheckpointStore, who: InstanceId) -> Saved | None:
    """An instance's newest sound checkpoint."""
    found = store.latest(str(who))
    if found is None:
        return None
    return Saved(found.time, found.needs, found.next_ids, found.inputs, found.state, (found.instance, found.number))


def restarts(
    who: InstanceId,
    replicas: Sequence[tuple[Sequence[LogId], Saved | None]],
    inputs: Mapping[str, Sequence[LogId]],
    open_log: OpenLog,
    is_held: HoldsRows | None = None,
) -> Iterator[Restart]:
    """The places where `who` may begin, best first: those of its own logs and checkpoint, then its partners'.

    replicas: own first: the logs that an instance writes, and its checkpoint; partners' logs in the order of our own.
    inputs: what it reads, 'stream/partition', and each replica's log of that. A place is left out where some input has
    no log any more that holds what the place needs; is_held tells, where asking a log may fail.
    """
    own = [open_log(log) for log in replicas[0][0]]
    incarnation = max(log.last_incarnation for log in own) + 1
    tails = [tail for tail in (log.tail() for log in own) if tail is not None]
    epoch = max((tail.epoch for tail in tails), default=-1)
    written = {log.id.key: log.next_stable_id for log in own}
    written_to = {log.id.key: last_time(log) for log in own}
    for logs, saved in replicas:
        anchor = oldest_anchor(open_log(log) for log in logs)
        for place in plan_restart(incarnation, epoch, written, anchor, saved):
            if can_serve(place, inputs, is_held or make_hold_check(open_log)):
                yield replace(place, written_to=written_to)


def oldest_anchor(logs: Iterable[Log]) -> Anchor | None:
    """The oldest of the last anchors of an instance's logs: what it had surely done in all of them."""
    anchors = [log.last_anchor() for log in logs]
    found = [anchor for anchor in anchors if anchor is not None]
    return min(found, key=lambda anchor: anchor.time) if len(found) == len(anchors) else None


def can_serve(restart: Restart, inputs: Mapping[str, Sequence[LogId]], is_held: HoldsRows) -> bool:
    """Whether every input still has what this place needs, in some replica's log."""
    return all(is_held(candidates, restart.inputs.get(key, 0)) for key, candidates in inputs.items())


def make_hold_check(open_log: OpenLog) -> HoldsRows:
    """`HoldsRows` for logs that are always within reach."""
    return lambda logs, first_id: any(holds(open_log(log), first_id) for log in logs)


def holds(log: Log, first_id: int) -> bool:
    """Whether a log can still give the stable rows from an id on. One that has not come so far is not the log that the id was
    of: topics were made anew, or a broker has lost their ends, and the rows that come next would pass for known ones."""
    if first_id > log.next_stable_id:
        return False
    try:
        log.offset_after(first_id - 1)
    except TrimmedError:
        return False
    return True


def last_time(log: Log) -> int:
    """The time up to which a log has its stable rows: the last one's, or the last stable boundary's where that is later."""
    anchor = log.last_anchor()
    promised = anchor.time - 1 if anchor is not None else BEGINNING
    try:
        found = log.read(log.offset_after(log.next_stable_id - 2), 1) if log.next_stable_id else []
    except TrimmedError:
        return promised
    frame = found[0][1] if found else None
    return max(promised, int(frame.batch.column(0)[-1].as_py())) if isinstance(frame, Data) else promised
