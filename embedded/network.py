"""Who reaches whom: the links between places, as faults cut and slow them.

A place is a name: a source stream ('jfk'), a replica ('main.r0'), or the egress ('egress.r0'). Data flows over links in
order and nothing is lost: what a cut holds back arrives after the heal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LATENCY_US = 1_000


@dataclass(frozen=True, slots=True)
class LinkCut:
    """No data passes between `a` and `b`; '*' stands for every other place. control_only: just messages are lost. one_way:
    what `a` sends does not arrive, while what is sent to it does."""

    a: str
    b: str = "*"
    control_only: bool = False
    one_way: bool = False

    def holds(self, here: str, there: str) -> bool:
        """Whether nothing passes from here to there."""
        if self.one_way:
            return self.a == here and self.b in ("*", there)
        return (self.a in (here, there)) and (self.b == "*" or self.b in (here, there))


@dataclass(frozen=True, slots=True)
class LinkDelay:
    """What `place` sends takes this much longer."""

    place: str
    by_us: int


@dataclass(slots=True)
class Network:
    """The faults in force now."""

    cuts: list[LinkCut] = field(default_factory=list)
    slow: list[LinkDelay] = field(default_factory=list)

    def passes_data(self, writer: str, reader: str) -> bool:
        return not any(cut.holds(writer, reader) and not cut.control_only for cut in self.cuts)

    def passes_messages(self, sender: str, receiver: str) -> bool:
        return not any(cut.holds(sender, receiver) for cut in self.cuts)

    def latency(self, writer: str) -> int:
        return LATENCY_US + sum(slow.by_us for slow in self.slow if slow.place == writer)
