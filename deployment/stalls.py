"""Finds instances that make no progress although all of their inputs do. Pure: events and the time in, effects out.

An instance that waits for a dead input stops for a good reason, and reports it itself. An instance whose inputs all advance,
for longer than any wait in the protocol, is stuck or cut off. Nothing else detects that.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from reconcile.events import InstanceId


@dataclass(frozen=True, slots=True)
class Stall:
    """An instance has made no progress for longer than the limit, while all of its inputs did."""

    who: InstanceId
    """The instance."""
    since: int
    """Time of its last progress (us)."""


@dataclass(frozen=True, slots=True)
class StallEnd:
    """An instance that had stalled makes progress again."""

    who: InstanceId
    """The instance."""


StallEffect = Stall | StallEnd


@dataclass(slots=True)
class _Input:
    """The progress of an input since its reader's last progress."""

    place: Hashable
    """Last known position; None if unknown."""
    first_moved_at: int = 0
    """First progress since then (us); 0 if there was none."""
    last_moved_at: int = 0
    """Last progress since then (us); 0 if there was none."""

    def move(self, place: Hashable, now: int) -> None:
        if place is None or place == self.place:
            return
        if self.place is not None:
            self.first_moved_at, self.last_moved_at = self.first_moved_at or now, now
        self.place = place


@dataclass(slots=True)
class _InstanceTrack:
    position: Hashable
    moved_at: int
    inputs: dict[str, _Input] = field(default_factory=dict)
    has_stalled: bool = False


class StallDetector:
    """Watches the progress of one query's instances. limit_us may be changed at any time."""

    def __init__(self, limit_us: int) -> None:
        self.limit_us = limit_us
        self._tracks: dict[InstanceId, _InstanceTrack] = {}

    @property
    def stalled(self) -> list[InstanceId]:
        """The instances that have stalled, sorted."""
        return [who for who, track in sorted(self._tracks.items()) if track.has_stalled]

    def observe(self, who: InstanceId, position: Hashable, inputs: Mapping[str, Hashable], now: int) -> list[StallEffect]:
        """An instance has reported its position. inputs: the last known position of each of its inputs; None if unknown.

        The positions must be of the same time: call this as soon as the report arrives.
        """
        track = self._tracks.get(who)
        if track is None or position != track.position:
            places = {name: _Input(place) for name, place in inputs.items()}
            self._tracks[who] = _InstanceTrack(position, now, places)
            return [StallEnd(who)] if track is not None and track.has_stalled else []
        track.inputs = {name: track.inputs.get(name) or _Input(place) for name, place in inputs.items()}
        for name, place in inputs.items():
            track.inputs[name].move(place, now)
        followed_us = min((entry.last_moved_at - entry.first_moved_at for entry in track.inputs.values()), default=0)
        if track.has_stalled or followed_us <= self.limit_us:
            return []
        track.has_stalled = True
        return [Stall(who, track.moved_at)]

    def forget(self, who: InstanceId) -> None:
        """The instance is silent, which is detected elsewhere. Watch it from the start when it reports again."""
        self._tracks.pop(who, None)
