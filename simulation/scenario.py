"""A scenario: the complete input of one run. `simulation.families` makes it from a seed.

Each scenario belongs to a family. A *storm* combines all kinds of faults; the other families are narrower, so that more can be
required of their runs: see `owes_delay` and `owes_silence`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from boreal.query.plan import Plan
from boreal.query.spec import Mode, unbounded_by
from embedded.world import POLL_FRAMES, UPLOAD_US
from reconcile.events import InstanceId
from reconcile.limits import PRODUCTION, Limits
from simulation.feed import Loaded, StreamFeed
from simulation.strikes import Strike

MILLISECOND = 1_000
SECOND = 1_000_000
REFERENCE_MEMORY = 1 << 30
HELD_BACK_BYTES = 1_000_000
"""More than the rows of alpha*X: a port with less memory drops tentative rows, which are not read again from a log."""

EVENTS_BEFORE_AN_ANSWER = 4
"""How many events may wait in an inbox before a request."""

UNHEARD = {"partition", "cut_one_way", "control_loss", "cut_replica", "slow", "freeze", "zombie", "replan"}
"""Strikes that may isolate a replica without killing it."""


@dataclass(frozen=True)
class Scenario:
    """The complete input of one run, and what its result owes beyond other runs (see `simulation.invariants`)."""

    seed: int
    """The seed that it was made from."""
    family: str
    """The name of its family."""
    plan: Plan
    """The query's plan."""
    feeds: dict[str, StreamFeed]
    """The rows of each stream."""
    start_us: int
    """The event time at which the feeds begin."""
    strikes: tuple[Strike, ...]
    """The faults."""
    skews: dict[InstanceId, int]
    """The errors of machines' clocks, in microseconds; 0 for those that are not named."""
    step_rows: int | None
    """The rows of a step of every SUnion; None: its own choice."""
    stride: int = 1
    """See `simulation.feed`."""
    owes_delay: bool = False
    """I3 is owed."""
    is_rowwise: bool = False
    """I3 is owed for each row: a result depends on one row, which comes by one path."""
    owes_silence: bool = False
    """I4 is owed, if every failure is shorter than alpha*X allows."""
    cut_us: int = 0
    """The length of the longest failure, where I4 is owed."""
    owes_masking: bool = False
    """Only one of several replicas fails, so the client must not notice."""
    owes_names: bool = False
    """The `missing_inputs` that the client gets are exactly the streams that are cut off."""
    may_skip: bool = False
    """A replica may restart from its partner's anchor, and its own log then lacks the rows of its absence (R27)."""
    batch_us: int = 0
    """How long a micro-batch takes, if some fragments' operators run in another process; else 0."""
    jumps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """See `simulation.feed`."""
    stalls: dict[str, tuple[int, int]] = field(default_factory=dict)
    """See `simulation.feed`."""
    loaded: Loaded | None = None
    """While the sources' processes are loaded; None: never."""
    has_whole_replica: bool = False
    """One replica has every stream that is not cut off from all replicas."""
    owes_early: bool = False
    """Rows are out of order for longer than X, and nothing fails, so every instance must stay STABLE."""
    limits: Limits = PRODUCTION
    """Those of every instance."""
    poll_frames: int = POLL_FRAMES
    """How many frames a reader gets at a time."""
    copy_us: int = 0
    """The time of each copy of a state, in addition to that for its bytes."""
    hops_us: tuple[tuple[str, int], ...] = ()
    """(place, the additional time of all that it sends)."""
    upload_us: int = UPLOAD_US
    """How long the upload of a checkpoint takes."""
    keeps_records: bool = False
    """Whether the client's records are written and replayed."""
    nears: tuple[tuple[int, InstanceId, int], ...] = ()
    """(when, a reader, the number of the replica whose logs are nearest to it from then on; -1: none is)."""
    patterns: tuple[str, ...] = ()
    """The names of the patterns that the strikes were drawn from, for the coverage."""
    walls: dict[InstanceId, tuple[int, ...]] = field(default_factory=dict)
    """The errors of the wall clocks of machines with a shared clock (`deployment.clock`), for each incarnation in turn."""

    @property
    def lag_us(self) -> int:
        """How far boundaries are behind rows: each stream's `disorder`."""
        return self.plan.disorder_us

    @property
    def pause_us(self) -> int:
        """How much longer than usual a source may be silent, because it is calm or its process is loaded."""
        return self.plan.calm_pause_us + self.rest_us

    @property
    def rest_us(self) -> int:
        """For how long rows gather in sources while their processes are loaded."""
        return self.loaded.rest_us(self.plan) if self.loaded else 0

    def lagging(self, lag_us: int) -> Scenario:
        """The same with another `disorder`."""
        return replace(self, plan=replace(self.plan, disorder_us=lag_us))

    @property
    def loses_state(self) -> bool:
        """Whether a checkpoint of state that windows cannot rebuild is lost: the replica then restarts from its partner's."""
        lost = any(strike.kind in ("crash_losing_checkpoint", "damage_checkpoint") for strike in self.strikes)
        return lost and self.is_unbounded

    @property
    def is_unbounded(self) -> bool:
        """Whether some operator's state cannot be rebuilt from windows."""
        return is_unbounded(self.plan)

    @property
    def owes_turns(self) -> bool:
        """Whether turns are owed (R22): no strike keeps replicas from answering each other, or from finishing a correction."""
        slowest_us = max((strike.amount for strike in self.strikes if strike.kind == "drag"), default=0)
        is_answered = slowest_us * EVENTS_BEFORE_AN_ANSWER <= self.plan.heartbeat_us
        return is_answered and not any(s.kind in UNHEARD or s.kind.startswith("engine") for s in self.strikes)

    @property
    def cut_streams(self) -> frozenset[str]:
        """The streams that some strike cuts off from all replicas."""
        kinds = ("cut_stream",) if self.has_whole_replica else ("cut_stream", "cut_stream_to_replica")
        return frozenset(strike.place for strike in self.strikes if strike.kind in kinds)

    @property
    def uncut_feeds(self) -> dict[str, StreamFeed]:
        """The feeds, empty for streams that some strike cuts off."""
        return {n: replace(f, counts=(0, 0)) if n in self.cut_streams else f for n, f in self.feeds.items()}

    @property
    def duration_us(self) -> int:
        """Run time until the last source ends."""
        intervals = max(feed.intervals for feed in self.feeds.values())
        return intervals * self.plan.boundary_interval_us // self.stride


def is_unbounded(plan: Plan) -> bool:
    """Whether some operator's state cannot be rebuilt from windows."""
    return any(unbounded_by(node.name, node.spec) for fragment in plan.fragments for node in fragment.nodes)


def make_reference(scenario: Scenario) -> Scenario:
    """The same source logs without failures, with one replica and other steps: many intervals at once."""
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
        nears=(),
        skews={},
        limits=PRODUCTION,
        copy_us=0,
        walls={},
        step_rows=rng.choice((3, 12, 40, None)),
        stride=rng.choice((7, 11, 16)),
        poll_frames=rng.choice((3, POLL_FRAMES)),
        hops_us=(),
        keeps_records=False,
    )


Families = dict[str, tuple[int, Callable[[int, str, Random], Scenario]]]
"""By name: the weight, and the function that makes a scenario."""
