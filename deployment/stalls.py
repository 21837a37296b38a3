"""Finds instances that stand still while all that they read goes on. Pure: events and the time in, effects out.

An instance that waits for a dead input stands still with good reason, and says so itself. One whose every input goes on
elsewhere, for longer than any wait that the protocol knows, is stuck or cut off, and nothing else would tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from reconcile.events import InstanceId


@dataclass(frozen=True, slots=True)
class Stall:
    """An instance has not moved since `since`, and each of its inputs went on all the while, for longer than the limit."""

    who: InstanceId
    since: int


@dataclass(frozen=True, slots=True)
class StallEnd:
    """An instance that had stalled moves again."""

    who: InstanceId


StallEffect = Stall | StallEnd


@dataclass(slots=True)
class _Input:
    """Where an input is, and when it first and last moved since the instance did."""

    place: Hashable
    first_moved_at: int = 0
    last_moved_at: int = 0

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
    """Of one query's instances. limit_us may be changed at any time."""

    def __init__(self, limit_us: int) -> None:
        self.limit_us = limit_us
        self._tracks: dict[InstanceId, _InstanceTrack] = {}

    @property
    def stalled(self) -> list[InstanceId]:
        return [who for who, track in sorted(self._tracks.items()) if track.has_stalled]

    def observe(self, who: InstanceId, position: Hashable, inputs: Mapping[str, Hashable], now: int) -> list[StallEffect]:
        """An instance has said where it is. inputs: where each of its inputs was last known to be; None: unknown.

        Call it with what is true at one time: with the instance's word as soon as it comes.
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
        """The instance is silent, which is a matter of its own. It is judged anew when it speaks again."""
        self._tracks.pop(who, None)
