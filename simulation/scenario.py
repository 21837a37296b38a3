"""A scenario: one run's whole input. `simulation.families` makes it from a seed.

Each scenario belongs to a family. A *storm* throws everything at everything; the other families are narrower, so that
something more can be demanded of them: see `owes_delay` and `owes_silence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from boreal.query.plan import Plan
from boreal.query.spec import Mode
from embedded.world import POLL_FRAMES, UPLOAD_US
from reconcile.events import InstanceId
from reconcile.limits import PRODUCTION, Limits
from simulation.feed import StreamFeed
from simulation.strikes import Strike

MILLISECOND = 1_000
SECOND = 1_000_000
REFERENCE_MEMORY = 1 << 30
HELD_BACK_BYTES = 1_000_000
"""More than the rows of alpha*X: a port that cannot hold these forgets tentative ones, which no log is read again for."""


EVENTS_BEFORE_AN_ANSWER = 4
"""So many may wait in an inbox before the one that asks."""

UNHEARD = {"partition", "cut_one_way", "control_loss", "cut_replica", "slow", "freeze", "zombie", "replan"}
"""Strikes after which a replica may be alone without having died."""


@dataclass(frozen=True)
class Scenario:
    """One run's whole input. step_rows: of every SUnion (None: its own choice); stride: see `simulation.feed`; skews: how
    far each machine's clock is off, in microseconds; walls: how far the wall clocks are off of those machines that have a
    shared clock (`deployment.clock`), in each life in turn; patterns: what the strikes were drawn as, for the count.

    What is owed beyond the rest (see `simulation.invariants`): owes_delay: I3; is_rowwise: with it, each result depends
    on one row, which comes by one path. owes_silence: I4, as no failure is as long as alpha*X allows; `cut_us` is its
    length. owes_masking: only one of several replicas fails, so no client may notice. owes_names: `missing_inputs` of what the
    client is given are just the streams that are cut off. may_skip: a replica may come back
    by its partner's anchor, its own log lacking what it slept through (R27). batch_us: how long a micro-batch takes, where
    some fragments' operators run in another process. jumps: see `simulation.feed`.
    has_whole_replica: one replica has every stream that is not cut off from all. owes_early: rows come out of order for longer
    than X, and nothing fails, so every instance is STABLE throughout. limits: of every instance; copy_us: what each copy of a
    state takes, beside what its bytes do; poll_frames: how many frames a reader is given at a time; hops_us: how much longer
    than others what a place sends takes; upload_us: how long a checkpoint is on its way. keeps_records: whether the client's
    records are written out, and replayed.
    """

    seed: int
    family: str
    plan: Plan
    feeds: dict[str, StreamFeed]
    start_us: int
    strikes: tuple[Strike, ...]
    skews: dict[InstanceId, int]
    step_rows: int | None
    stride: int = 1
    owes_delay: bool = False
    is_rowwise: bool = False
    owes_silence: bool = False
    cut_us: int = 0
    owes_masking: bool = False
    owes_names: bool = False
    may_skip: bool = False
    batch_us: int = 0
    jumps: dict[str, tuple[int, int]] = field(default_factory=dict)
    has_whole_replica: bool = False
    owes_early: bool = False
    limits: Limits = PRODUCTION
    poll_frames: int = POLL_FRAMES
    copy_us: int = 0
    hops_us: tuple[tuple[str, int], ...] = ()
    upload_us: int = UPLOAD_US
    keeps_records: bool = False
    patterns: tuple[str, ...] = ()
    walls: dict[InstanceId, tuple[int, ...]] = field(default_factory=dict)

    @property
    def lag_us(self) -> int:
        """How far boundaries are behind rows: each stream's `disorder`."""
        return self.plan.disorder_us

    def lagging(self, lag_us: int) -> Scenario:
        """The same with another `disorder`."""
        return replace(self, plan=replace(self.plan, disorder_us=lag_us))

    @property
    def loses_state(self) -> bool:
        """Whether a checkpoint is lost that no windows can rebuild: then too a replica comes back by its partner's."""
        lost = any(strike.kind in ("crash_losing_checkpoint", "damage_checkpoint") for strike in self.strikes)
        return lost and self.is_unbounded

    @property
    def is_unbounded(self) -> bool:
        """Whether some operator's state cannot be rebuilt from windows."""
        return any(getattr(node.spec, "window", True) is None for part in self.plan.fragments for node in part.nodes)

    @property
    def owes_turns(self) -> bool:
        """R22: no strike keeps replicas from hearing and answering each other, or from ending what they have begun."""
        slowest_us = max((strike.amount for strike in self.strikes if strike.kind == "drag"), default=0)
        is_answered = slowest_us * EVENTS_BEFORE_AN_ANSWER <= self.plan.heartbeat_us
        return is_answered and not any(s.kind in UNHEARD or s.kind.startswith("engine") for s in self.strikes)

    @property
    def cut_streams(self) -> frozenset[str]:
        """The streams that some strike cuts off, so that nobody has them."""
        kinds = ("cut_stream",) if self.has_whole_replica else ("cut_stream", "cut_stream_to_replica")
        return frozenset(strike.place for strike in self.strikes if strike.kind in kinds)

    @property
    def uncut_feeds(self) -> dict[str, StreamFeed]:
        """The feeds, those of streams that some strike cuts off being empty."""
        return {n: replace(f, counts=(0, 0)) if n in self.cut_streams else f for n, f in self.feeds.items()}

    @property
    def duration_us(self) -> int:
        """Run time until the last source ends."""
        intervals = max(feed.intervals for feed in self.feeds.values())
        return intervals * self.plan.boundary_interval_us // self.stride


def reference_of(scenario: Scenario) -> Scenario:
    """The same source logs without failures, with one replica and other steps: many intervals at once, fast."""
    given = scenario.plan
    calm = replace(
        given,
        fragments=tuple(replace(fragment, replicas=fragment.replicas[:1], engines=("native",)) for fragment in given.fragments),
        mode=Mode.OVERLAY_REDO,
        delay_threshold_us=60 * SECOND,
        alpha_x_us=None,
        memory_bytes=REFERENCE_MEMORY,
        heartbeat_us=SECOND,
        checkpoint_interval_us=None,
    )
    rng = Random(-1 - scenario.seed)
    return replace(
        scenario,
        plan=calm,
        strikes=(),
        skews={},
        limits=PRODUCTION,
        copy_us=0,
        walls={},
        step_rows=rng.choice((2, 9, 40, None)),
        stride=rng.choice((4, 7, 11)),
        poll_frames=rng.choice((3, POLL_FRAMES)),
        hops_us=(),
        keeps_records=False,
    )


Families = dict[str, tuple[int, Callable[[int, str, Random], Scenario]]]
"""By name: the weight, and what makes a scenario of it."""
