"""A version that begins with the states of the one in charge (`deployment.shared_sources`): with its newest checkpoints.

A state at an event time T, and the rows from T on, give all results of the new version from T on. So each of its shards begins
with the newest checkpoint that any replica has of the shard. The new version has written no row, so its ids count from T on.
All replicas begin with the same checkpoint, and so give the same ids, whatever the running version stores later:

    1. Find the newest sound checkpoint of the shard.
    2. Check that the logs still hold the rows that follow. These rows are claimed, so they stay.
    3. Store the checkpoint for the new version. After a crash all this is done again, and may find a newer one.
    4. The record names the one that is begun with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from boreal.model.errors import UserError
from boreal.model.frames import Anchor
from boreal.query.plan import Fragment, Plan
from deployment.shared_sources import first_rows, lost_rows, same_operators
from logs.checkpoints import Checkpoint, CheckpointStore
from operators.graph import FragmentGraph
from reconcile.events import InstanceId

_PREFIX = "carried/"

HoldsRows = Callable[[str, int], bool]
"""Whether the log of a 'stream/partition' still holds the rows from an id on."""


@dataclass(frozen=True, slots=True)
class CarriedStates:
    """The states with which a version begins, and from where it reads on."""

    first_ids: Mapping[str, int]
    """The id of the first row, by 'stream/partition'."""
    reach: Mapping[str, int]
    """The event time (us) from which on it has all rows that the states do not hold, by the name of the edge."""
    states: Mapping[str, tuple[str, int]]
    """The owner and the number of the checkpoint, by 'fragment/shard'."""


def is_carried(owner: str) -> bool:
    """Whether this owner's checkpoints are those with which a version begins. Its name does not begin as that of an instance:
    when the checkpoints of one replica are deleted, those stay that all replicas begin with."""
    return owner.startswith(_PREFIX)


def carry_states(
    former: CheckpointStore, store: CheckpointStore, running: Plan, new: Plan, is_held: HoldsRows
) -> CarriedStates:
    """Store the newest states of a version that runs as checkpoints of a new one. former, store: those of each. Both have one
    fragment, and the same operators with a state. UserError while a shard has no checkpoint, or if the logs have lost what
    follows it; CorruptError if it is of another query; what the stores and `is_held` raise."""
    old, fragment = running.fragments[0], new.fragments[0]
    same, before, after = same_operators(old, fragment), FragmentGraph(old), FragmentGraph(fragment)
    places: dict[tuple[str, int], Anchor | None] = {}
    states: dict[str, tuple[str, int]] = {}
    for shard in range(old.shards):
        newest = _newest(former, old, shard)
        for key, first_id in newest.inputs:
            if not is_held(key, first_id):
                raise lost_rows(key, first_id)
        places[old.name, shard] = _place(newest)
        # Replicas may use the same number for different states. So the owner names the replica too: what the record names
        # always means the same state.
        owner, state = f"{_PREFIX}{newest.instance}", after.carry(newest.state, before, same)
        store.put(replace(newest, instance=owner, needs=newest.time, next_ids=(), state=state))
        states[f"{fragment.name}/{shard}"] = owner, newest.number
    first_ids, reach = first_rows(running, places)
    return CarriedStates(first_ids, reach, states)


def newest_place(store: CheckpointStore, fragment: Fragment, shard: int) -> Anchor:
    """From where a version without these states reads on, as if it were the last anchor: by a state that depends on all rows
    ever, an anchor needs the first one. UserError while the shard has no checkpoint; what the store raises."""
    return _place(_newest(store, fragment, shard))


def _place(newest: Checkpoint) -> Anchor:
    """From where one reads on that has this state: it needs no row from before it."""
    return Anchor(newest.time, newest.time, newest.next_ids, newest.inputs)


def _newest(store: CheckpointStore, fragment: Fragment, shard: int) -> Checkpoint:
    saved = [store.latest(str(InstanceId(fragment.name, replica, shard))) for replica in fragment.replicas]
    newest = max((each for each in saved if each is not None), key=lambda each: each.time, default=None)
    if newest is None:
        raise UserError(f"checkpoint of {fragment.name}.{shard}", None, "is not there yet", "wait for it, or roll back")
    return newest
