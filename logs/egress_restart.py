"""Where a new incarnation of the egress begins (R26-R28): at the last anchor in q.out, or else where its inputs begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from boreal.model.columns import event_times
from boreal.model.frames import Anchor, Data, LogId
from boreal.query.plan import EGRESS, Plan
from formats.changelog import ChangelogPlace
from logs.log import Log, TrimmedError
from logs.restart import HoldsRows, OpenLog, can_serve, make_hold_check
from reconcile.recovery import Restart, plan_restart
from sunion.buckets import bucket_end
from sunion.tape import BEGINNING

READ_FRAMES = 256
"""Maximum number of frames in one read."""


@dataclass(frozen=True)
class OutTail:
    """The end of q.out."""

    place: ChangelogPlace | None
    """Position of the changelog; None if nothing was ever written."""
    incarnation: int
    """Highest incarnation that has written to the topic."""
    anchor: Anchor | None
    """The last anchor; None if there is none."""
    written_to: int
    """Event time (us) of the last stable row."""
    end: int
    """Offset of the next record."""
    lacking_from: int
    """First offset that may hold a row that q.stable still lacks."""
    version: int | None = None
    """The version of the query that the next rows come from, as the last record says; None if no record says one."""


def egress_restart(
    plan: Plan, tail: OutTail, inputs: Mapping[str, Sequence[LogId]], open_log: OpenLog, is_held: HoldsRows | None = None
) -> tuple[Restart, bool]:
    """Where the egress begins, and whether its readers lose rows.

    inputs: each replica's log, by 'stream/partition'. is_held: as for `logs.restart.restarts`.

    If rows that the anchor needs are trimmed, the readers lose rows: the egress begins at the first bucket that all inputs
    still hold, and its START skips the ids of the lost rows (R27).
    """
    key = f"{plan.fragment(EGRESS).outputs[0].name}/0"
    written = {key: tail.place.next_stable_id} if tail.place else {}
    epoch = tail.place.epoch if tail.place else -1
    for place in plan_restart(tail.incarnation + 1, epoch, written, tail.anchor, None):
        place = replace(place, written_to={key: tail.written_to})
        if can_serve(place, inputs, is_held or make_hold_check(open_log)):
            return place, False
    logs = {name: _fullest([open_log(log) for log in candidates]) for name, candidates in inputs.items()}
    begin = max(_first_whole_bucket(log, plan.bucket_us) for log in logs.values())
    # The egress only merges: the id of a row is the number of rows before it in all inputs, and of those that another version
    # gave before.
    first_ids = {name: _first_id_from(log, begin) for name, log in logs.items()}
    others = 0
    if tail.version is not None and tail.anchor is not None:
        others = dict(tail.anchor.next_ids)[key] - sum(dict(tail.anchor.inputs).values())
    place = Restart(
        tail.incarnation + 1,
        epoch,
        begin,
        begin,
        {key: others + sum(first_ids.values())},
        written,
        first_ids,
        written_to={key: tail.written_to},
    )
    return place, True


def _fullest(logs: Sequence[Log]) -> Log:
    """The log that reaches back furthest."""
    return min(logs, key=lambda log: next((frame.first_id for frame in _stable(log)), log.next_stable_id))


def _first_whole_bucket(log: Log, bucket_us: int) -> int:
    """The time from which a log certainly holds all rows."""
    for frame in _stable(log):
        return BEGINNING if frame.first_id == 0 else bucket_end(frame.batch.column(0)[0].as_py(), bucket_us)
    anchor = log.last_anchor()
    return anchor.time if anchor is not None and log.next_stable_id else BEGINNING


def _first_id_from(log: Log, time: int) -> int:
    """The id of the first row that is not older than `time`."""
    for frame in _stable(log):
        times = event_times(frame.batch)
        before = int(np.searchsorted(times, time))
        if before < len(times):
            return frame.first_id + before
    return log.next_stable_id


def _stable(log: Log) -> Iterator[Data]:
    """The stable DATA frames that a log still holds."""
    offset = log.start
    while offset < log.end:
        try:
            items = log.read(offset, READ_FRAMES, skip_revoked=True)
        except TrimmedError as trimmed:
            offset = trimmed.start
            continue
        yield from (frame for _, frame in items if isinstance(frame, Data) and not frame.tentative)
        offset = items[-1][0] + 1 if items else log.end
