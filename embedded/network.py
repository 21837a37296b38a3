"""The links between places, which faults can cut and slow down.

A place is a name: a source stream ('jfk'), a replica ('main.r0'), or the egress ('egress.r0'). Data flows over links in
order, and none is lost: data that a cut holds back arrives after the heal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LATENCY_US = 1_000


@dataclass(frozen=True, slots=True)
class LinkCut:
    """A cut between two places."""

    a: str
    """One of the places."""
    b: str = "*"
    """The other place; '*' stands for all other places."""
    control_only: bool = False
    """Whether only messages are cut, and data passes."""
    one_way: bool = False
    """Whether only the direction from `a` is cut."""

    def holds(self, here: str, there: str) -> bool:
        """Whether the direction from `here` to `there` is cut."""
        if self.one_way:
            return self.a == here and self.b in ("*", there)
        return (self.a in (here, there)) and (self.b == "*" or self.b in (here, there))


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """An additional delay of all that a place sends."""

    place: str
    """The sender."""
    by_us: int
    """The delay, in microseconds of run time."""


@dataclass(slots=True)
class Network:
    """The cuts and delays that are active at present."""

    cuts: list[LinkCut] = field(default_factory=list)
    """The active cuts; several may overlap."""
    slow: list[LinkDelay] = field(default_factory=list)
    """The active delays; those of one place add up."""

    def passes_data(self, writer: str, reader: str) -> bool:
        return not self.cuts or not any(cut.holds(writer, reader) and not cut.control_only for cut in self.cuts)

    def passes_messages(self, sender: str, receiver: str) -> bool:
        return not self.cuts or not any(cut.holds(sender, receiver) for cut in self.cuts)

    def latency(self, writer: str) -> int:
        return LATENCY_US + sum([slow.by_us for slow in self.slow if slow.place == writer])
