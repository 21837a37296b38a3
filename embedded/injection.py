"""What faults do to a world: `strike` begins a fault, and its end comes after its duration, or earlier by `heal`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from boreal.query.plan import Fragment, Plan
from embedded.faults import Fault
from embedded.network import LinkCut, LinkDelay
from embedded.world import World
from reconcile.events import InstanceId


@dataclass(eq=False)
class ActiveFault:
    """A fault that has begun and is not over."""

    fault: Fault
    """The fault."""
    ends_at: int | None
    """The run time of its end, in microseconds; None if it never heals."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """What its end does, in order."""


class FaultInjector:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.active: list[ActiveFault] = []
        self._holders: dict[tuple[str, InstanceId], int] = {}

    def strike(self, fault: Fault) -> ActiveFault:
        """Begin a fault now, whatever its `at_us` says. It ends after `for_us`."""
        world, network = self.world, self.world.network
        ends_at = None if fault.for_us is None else world.now + fault.for_us
        active = ActiveFault(fault, ends_at)
        self.active.append(active)
        match fault.kind:
            case "crash" | "freeze":
                self._stop_processes(active)
                return active
            case "slow":
                rule = LinkDelay(fault.stream or f"{fault.fragment}.{fault.replica}", fault.by_us)
                network.slow.append(rule)
                active.undo.append(lambda: network.slow.remove(rule))
            case _:
                for cut in _cuts(fault, world.plan):
                    network.cuts.append(cut)
                    active.undo.append(lambda cut=cut: network.cuts.remove(cut))  # type: ignore[misc]
        active.undo.append(world.links_changed)
        if ends_at is not None:
            world.at(ends_at, lambda: self.heal(active))
        return active

    def heal(self, active: ActiveFault) -> None:
        """End a fault. Does nothing if it is over."""
        if active in self.active:
            self.active.remove(active)
            for action in active.undo:
                action()

    def _stop_processes(self, active: ActiveFault) -> None:
        world, fault = self.world, active.fault
        shards = world.plan.fragment(fault.fragment).shards
        for who in [InstanceId(fault.fragment, fault.replica, shard) for shard in range(shards)]:
            key = (fault.kind, who)
            if fault.kind == "freeze":
                world.freeze(who)
            else:
                world.crash(who, fault.losing_checkpoint)
            self._holders[key] = self._holders.get(key, 0) + 1
            active.undo.append(lambda who=who: self._bring_back(fault.kind, who))  # type: ignore[misc]
        if active.ends_at is not None:
            world.at(active.ends_at, lambda: self.heal(active))

    def _bring_back(self, kind: str, who: InstanceId) -> None:
        """A fault of a process ends. The process returns when the last of its overlapping faults ends."""
        self._holders[(kind, who)] -= 1
        if self._holders[(kind, who)]:
            return
        if kind == "freeze":
            self.world.thaw(who)
        else:
            self.world.start(who)


def _cuts(fault: Fault, plan: Plan) -> list[LinkCut]:
    if fault.kind == "cut_replica":
        return [LinkCut(f"{fault.fragment}.{fault.replica}")]
    if not fault.to_replica:
        return [LinkCut(fault.stream)]
    readers: list[Fragment] = [
        f
        for f in plan.fragments
        if any(edge.operator == fault.stream and edge.source for edge in f.edges)
        and (not fault.fragment or f.name == fault.fragment)
    ]
    return [LinkCut(fault.stream, f"{fragment.name}.{fault.to_replica}") for fragment in readers]
