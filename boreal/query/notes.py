"""The notes of a plan, for people: what is left out of a query, what will not do as expected, and settings that would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from boreal.model.durations import format_duration
from boreal.query.parts import FragmentPart
from boreal.query.plan import EGRESS, Fragment
from boreal.query.query import Query
from boreal.query.running import Hold, Mode
from boreal.query.schemas import QueryGraph
from boreal.query.shapes import Aggregate, Top

PANE_US = 25
"""What a window that closes takes at least for each piece that it is made of (measured with ten groups)."""

MOST_OF_A_CORE = 0.5
"""A window operator that takes more than this just to close windows will not keep up with live input."""

SPARK_ORDER_US = 750_000
"""What an order to operators in Spark is taken to need, before it was measured."""

HOP_US = 50_000
"""What the way from one fragment to the next is taken to need: some tens of milliseconds where machines have time."""

NOTED_TO_US = 50_000
"""Thresholds that notes propose are whole multiples of this."""


def pruned(query: Query) -> list[str]:
    """Notes on what the plan leaves out."""
    used = {source for name in query.reaching for source in query.operators[name].inputs} | {query.output}
    return [
        *(f"stream {name} does not reach the output and is left out" for name in query.streams if name not in used),
        *(
            f"operator {name} does not reach the output and is left out"
            for name in query.operators
            if name not in query.reaching
        ),
    ]


def lone_replicas(query: Query, parts: Iterable[FragmentPart]) -> Iterator[str]:
    """A note on R21: without a second replica, new input waits for the correction, unless the overlay can go on beside it."""
    if query.policy.stabilization is Hold.SUSPEND or query.reconcile is Mode.OVERLAY_REDO:
        return
    alone = [part.name for part in parts if part.replicas == 1]
    if alone:
        where = f" ({', '.join(alone)})" if query.fragments else ""
        yield f"stabilization acts as suspend: one replica{where}"


def held_back(query: Query, fragments: Iterable[Fragment], speed: float) -> Iterator[str]:
    """Notes on streams whose boundaries, `disorder` behind their rows, come when every bucket is overdue (R8, R29).

    speed: event time over run time. Nothing to refuse: an answer that comes early, and is right once `disorder` is over, may
    be just what is wanted; and what was recorded may be fed at any pace.
    """
    if query.policy.failure is Hold.SUSPEND:
        return
    tuning = query.tuning
    after = _after_holding(fragments, query.intervals.completion)
    for name, stream in query.streams.items():
        if name not in after or stream.boundary == "producer" or not stream.disorder:
            continue
        held = round(stream.disorder / speed) + query.intervals.completion + HOP_US
        if held < _left_to_hold(query, after[name]):
            continue
        if tuning.alpha_x is not None:
            cause = f"tuning.alpha_x, {format_duration(tuning.alpha_x)}"
            least, setting = held + 1, "tuning.alpha_x"
        else:
            cause = f"what delay_threshold, {format_duration(query.delay_threshold)}, leaves"
            least, setting = _least_threshold(query, held + after[name]), "delay_threshold"
        rounded = -(-least // NOTED_TO_US) * NOTED_TO_US
        yield (
            f"stream {name}: disorder {format_duration(stream.disorder)} holds every bucket back for longer than {cause}: "
            f'where rows come as they happen, every answer is given early, within X (tentative, cause "early"), and the final '
            f"one when disorder is over; for none but final ones write a {setting} of {format_duration(rounded)} or more, or a "
            "smaller disorder"
        )


def _after_holding(fragments: Iterable[Fragment], spread: int) -> dict[str, int]:
    """What comes at worst after a SUnion has handed a bucket on, up to the client, by the stream that it reads. spread: how
    much later a bucket may come from one producer than from another."""
    after: dict[str, int] = {}
    for fragment in reversed(tuple(fragments)):
        own = 0 if set(fragment.engines) == {"native"} else SPARK_ORDER_US
        hops = [HOP_US + after.get(edge.operator, 0) for edge in fragment.outputs if fragment.name != EGRESS]
        rest = own + max(hops, default=0)
        for edge in fragment.edges:
            waits = spread if fragment.has_several_producers and not edge.source else 0
            after[edge.operator] = max(after.get(edge.operator, 0), rest + waits)
    return after


def _reserve(query: Query, threshold: int) -> int:
    """What R9 keeps of X."""
    return max(threshold // 10, query.intervals.completion)


def _left_to_hold(query: Query, after: int) -> int:
    """How long a SUnion may hold a bucket back, where so much comes after it (R9)."""
    if query.tuning.alpha_x is not None:
        return query.tuning.alpha_x
    threshold = query.delay_threshold
    return max(threshold - after - _reserve(query, threshold), threshold // 4)


def _least_threshold(query: Query, taken: int) -> int:
    """The smallest X of which more than so much is left beside the reserve."""
    return max(taken * 10 // 9, taken + _reserve(query, 0)) + 1


def too_many_panes(query: Query) -> Iterator[str]:
    """Notes on sliding windows that cannot be closed as fast as time passes. Recorded input is in no hurry."""
    for name in query.reaching:
        spec = query.operators[name]
        if not isinstance(spec, Aggregate | Top):
            continue
        if spec.window.session is not None:
            continue
        size, every = spec.window.size_us, spec.window.every_us
        panes = size // gcd(size, every)
        if panes > 1 and panes * PANE_US > MOST_OF_A_CORE * every:
            yield (
                f"{name} makes each window of {panes:,} pieces, and one ends every {format_duration(every)}: that takes about "
                f"{format_duration(panes * PANE_US)}, too long to keep up with live input; write a longer `every`, which "
                f"divides {format_duration(size)}"
            )


def own_packages(graph: QueryGraph) -> Iterator[str]:
    """Where the operators of installed packages come from in this process: another may have another version."""
    for name, own in graph.own.items():
        found = own.installed
        version = f" {found.version}" if found.version else ""
        yield f"{name} is {found.name} of {found.package}{version}"
