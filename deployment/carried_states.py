"""A version that begins with the states of the one in charge (`deployment.shared_sources`): with checkpoints of it. Pure, but
for the checkpoint stores that it is given.

A state at an event time T, and the rows from T on, give all results of a fragment from T on. So each shard of a fragment whose
state depends on all rows ever begins with a checkpoint that a replica has of it, at the newest T that serves the fragments that
read it:

    - One that begins with a state at T' needs all rows from T' on, so T is not later than any T' of its readers. The rows
      before T' that it is sent, it has already: it drops them, as it drops all rows before its position.
    - One whose state is in rows (a window) needs them for as long before T' as its window reaches. So it begins with rows of
      that time, and with no state.

The new version has written no row, so its ids count from T on. All replicas begin with the same checkpoint, and so give the
same ids, whatever the running version stores later:

    1. Choose the checkpoints, from the readers' side on.
    2. Check that the logs of the sources still hold the rows that follow. These rows are claimed, so they stay.
    3. Store the checkpoints for the new version. After a crash all this is done again, and may find newer ones.
    4. The record names those that are begun with.

The checkpoints of two fragments that run are hardly ever more than an interval apart, and the store has at least two of each
replica. Where none is old enough all the same, the next look finds newer ones of the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import INFINITY, Anchor
from boreal.query.plan import Fragment, Plan
from deployment.recompute import FragmentSpans
from deployment.shared_sources import lost_rows, same_operators
from formats.json_text import moment
from logs.checkpoints import Checkpoint, CheckpointStore
from operators.graph import FragmentGraph
from reconcile.events import InstanceId

_PREFIX = "carried/"

HoldsRows = Callable[[str, int], bool]
"""Whether the log of a 'stream/partition' still holds the rows from an id on."""
PlaceOf = Callable[[str, int], int]
"""An id of a 'stream/partition' before which no row has this event time (us) or a later one."""


@dataclass(frozen=True, slots=True)
class CarriedStates:
    """The states with which a version begins, and from where it reads on."""

    first_ids: Mapping[str, int]
    """The id of the first row, by 'stream/partition' of a source."""
    reach: Mapping[str, int]
    """The event time (us) from which on its results lack no row, by the name of a source's edge."""
    states: Mapping[str, tuple[str, int]]
    """The owner and the number of the checkpoint, by 'fragment/shard'."""


def is_carried(owner: str) -> bool:
    """Whether this owner's checkpoints are those with which a version begins. Its name does not begin as that of an instance:
    when the checkpoints of one replica are deleted, those stay that all replicas begin with."""
    return owner.startswith(_PREFIX)


def carry_states(
    former: CheckpointStore, store: CheckpointStore, running: Plan, new: Plan, place_of: PlaceOf, is_held: HoldsRows
) -> CarriedStates:
    """Store states of a version that runs as checkpoints of a new one. former, store: those of each. Fragments whose state
    depends on all rows ever are the same in both. UserError while a shard has no checkpoint that serves, or if the logs have
    lost what follows it; CorruptError if it is of another query; what the stores, `place_of` and `is_held` raise."""
    chosen = _choose(former, running, new)
    first_ids = _first_ids(new, chosen, partial(_place_of, former, running, place_of))
    for key, first_id in first_ids.items():
        if not is_held(key, first_id):
            raise lost_rows(key, first_id)
    same = same_operators(running, new)
    states: dict[str, tuple[str, int]] = {}
    for name, of_shards in chosen.items():
        before, after = FragmentGraph(running.fragment(name)), FragmentGraph(new.fragment(name))
        for shard, saved in enumerate(of_shards):
            # Replicas may use the same number for different states. So the owner names the replica too: what the record
            # names always means the same state.
            owner, state = f"{_PREFIX}{saved.instance}", after.carry(saved.state, before, same)
            inputs = tuple((key, first_id) for key, first_id in saved.inputs if key in first_ids)
            store.put(replace(saved, instance=owner, needs=saved.time, next_ids=(), inputs=inputs, state=state))
            states[f"{name}/{shard}"] = owner, saved.number
    at = {name: max(each.time for each in of_shards) for name, of_shards in chosen.items()}
    complete = FragmentSpans(new, at).earliest(_reach(new, at))
    assert complete is not None, "what depends on all rows ever begins with a state"
    return CarriedStates(first_ids, {edge.name: complete for edge in new.sources}, states)


def _choose(former: CheckpointStore, running: Plan, new: Plan) -> dict[str, list[Checkpoint]]:
    """The checkpoints with which a version begins: by fragment, one for each shard. Errors as `carry_states`."""
    chosen: dict[str, list[Checkpoint]] = {}
    for fragment in reversed(new.fragments):
        if FragmentGraph(fragment).unbounded:
            limit = FragmentSpans(new, _first_times(chosen)).since(INFINITY)[fragment.name].exact_from
            old = running.fragment(fragment.name)
            chosen[fragment.name] = [_newest(former, old, shard, limit) for shard in range(old.shards)]
    return chosen


def _first_times(chosen: Mapping[str, Sequence[Checkpoint]]) -> dict[str, int]:
    """The event time from which on each fragment with states needs rows."""
    return {name: min(each.time for each in of_shards) for name, of_shards in chosen.items()}


def _positions(new: Plan, times: Mapping[str, int]) -> dict[str, int]:
    """The event time from which on each fragment reads rows. times: of the states that are begun with, by fragment. One that no
    fragment with a state reads begins with the last of these times."""
    last = max(times.values())
    return {name: min(span.position, last) for name, span in FragmentSpans(new, times).since(INFINITY).items()}


def _reach(new: Plan, times: Mapping[str, int]) -> dict[str, int]:
    positions = _positions(new, times)
    return {edge.name: min(positions[f.name] for f in new.fragments if edge in f.edges) for edge in new.sources}


def _first_ids(new: Plan, chosen: Mapping[str, Sequence[Checkpoint]], place_of: PlaceOf) -> dict[str, int]:
    """From where the logs of sources are read: by the checkpoints, or by the event time from which on rows are needed."""
    positions = _positions(new, _first_times(chosen))
    found: dict[str, int] = {}
    for fragment in new.fragments:
        for shard, edge in product(range(fragment.shards), fragment.edges):
            if edge.source:
                key = edge.source_key(shard)
                if fragment.name in chosen:
                    first_id = dict(chosen[fragment.name][shard].inputs)[key]
                else:
                    first_id = place_of(key, positions[fragment.name])
                found[key] = min(found.get(key, first_id), first_id)
    return found


def _place_of(former: CheckpointStore, running: Plan, place_of: PlaceOf, key: str, time: int) -> int:
    """As `PlaceOf`, by checkpoints of those who read the log too: an anchor of a state that depends on all rows ever needs the
    first row."""
    found = [place_of(key, time)]
    for fragment in running.fragments:
        for shard, edge in product(range(fragment.shards), fragment.edges):
            if edge.source and edge.source_key(shard) == key and FragmentGraph(fragment).unbounded:
                saved = _find_newest(former, fragment, shard, time)
                found.append(dict(saved.inputs)[key] if saved is not None else 0)
    return max(found)


def newest_place(store: CheckpointStore, fragment: Fragment, shard: int) -> Anchor:
    """From where a version without these states reads on, as if it were the last anchor: by a state that depends on all rows
    ever, an anchor needs the first one. UserError while the shard has no checkpoint; what the store raises."""
    newest = _newest(store, fragment, shard, INFINITY)
    return Anchor(newest.time, newest.time, newest.next_ids, newest.inputs)


def _newest(store: CheckpointStore, fragment: Fragment, shard: int, limit: int) -> Checkpoint:
    """As `_find_newest`. UserError if there is none."""
    newest = _find_newest(store, fragment, shard, limit)
    if newest is None:
        until = f" of {moment(limit)} or before" if limit < INFINITY else ""
        problem = f"is not there yet{until}"
        raise UserError(f"checkpoint of {fragment.name}.{shard}", None, problem, "wait for it, or roll back")
    return newest


def _find_newest(store: CheckpointStore, fragment: Fragment, shard: int, limit: int) -> Checkpoint | None:
    """The newest sound checkpoint of a shard whose time is not after `limit`, by whatever replica."""
    saved = [_newest_of(store, str(InstanceId(fragment.name, replica, shard)), limit) for replica in fragment.replicas]
    return max((each for each in saved if each is not None), key=lambda each: each.time, default=None)


def _newest_of(store: CheckpointStore, instance: str, limit: int) -> Checkpoint | None:
    for number in reversed(store.numbers(instance)):
        with suppress(KeyError, CorruptError):  # dropped meanwhile, or damaged: an older one serves too
            if (found := store.get(instance, number)).time <= limit:
                return found
    return None
