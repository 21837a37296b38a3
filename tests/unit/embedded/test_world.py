"""The world of an embedded run: what a reader gets whose log no longer has what it asks for."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.frames import INFINITY, Boundary, Data, LogId, Start
from embedded.source_logs import ORIGIN
from embedded.world import ModelClock, World
from logs.checkpoints import Checkpoint
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore
from reconcile.events import InstanceId, Read
from sunion.tape import BEGINNING
from tests.harness import MS, plan_of, query_of

A, B = LogId("a", "", 0), LogId("b", "", 0)
WHO = InstanceId("main", "r0", 0)


def world_with_rows(count: int, trimmed: bool = True) -> World:
    """One row a frame, all of them taken by the instance; the first half is trimmed then, or not."""
    plan = plan_of(query_of(streams=("a", "b")))
    world = World(plan, ModelClock(), MemoryLogStore(), MemoryCheckpointStore(), lambda *_: None)
    schema = next(edge.schema for edge in plan.sources if edge.name == "a")
    world.append(A, Start(ORIGIN, 0))
    for at in range(count):
        row = dict.fromkeys(schema.arrow.names) | {"time": at}
        batch = pa.RecordBatch.from_pylist([row], schema=schema.arrow)
        world.append(A, Data(ORIGIN, 0, at, batch, False, ((INFINITY, 0),), plan.bucket_us))
    world.append(A, Boundary(ORIGIN, 0, count, False, 0, 0))
    world.start(WHO)
    world.run(lambda: world.now > 10 * MS)
    if trimmed:
        world.logs.open(A).trim(count // 2)
    return world


@pytest.mark.parametrize("has_anchor", [False, True])
def test_a_sound_checkpoint_of_another_query_is_passed_over_for_the_next_place_to_begin(has_anchor: bool) -> None:
    """Its checksum is right, and yet the fragment cannot decode it."""
    world = world_with_rows(10, trimmed=False)
    for log in (A, B) if has_anchor else (A,):
        world.append(log, Boundary(ORIGIN, 0, 500 * MS, False, 0, 0))
    world.run(lambda: world.now > 500 * MS)
    world.crash(WHO)
    world.store.put(Checkpoint(str(WHO), 1, 600 * MS, 600 * MS, (), (("a/0", 5),), b"not ours"))
    world.start(WHO)
    instance = world.processes[WHO].instance
    assert instance is not None and not world.breaches
    assert instance.restart.state is None and instance.restart.incarnation == 2
    assert (instance.restart.muted_until > BEGINNING) == has_anchor
    world.run(lambda: world.now > 600 * MS)
    assert instance.status().inputs[0].next_id == 10


def test_rows_to_read_again_that_no_log_holds_any_more_end_the_life_that_needs_them() -> None:
    """R27: that the next rows can be had does not help; else it would ask for the trimmed ones for ever."""
    world = world_with_rows(10)
    process = world.processes[WHO]
    assert process.instance is not None and process.instance.status().inputs[0].next_id == 10
    incarnation = process.incarnation
    world._read(process, incarnation, Read(A, 0, 1 << 20, 1))
    assert process.incarnation != incarnation


def test_rows_to_read_again_that_the_log_still_holds_are_given() -> None:
    world = world_with_rows(10)
    process = world.processes[WHO]
    incarnation = process.incarnation
    world._read(process, incarnation, Read(A, 7, 1 << 20, 1))
    assert process.incarnation == incarnation and not world.breaches
