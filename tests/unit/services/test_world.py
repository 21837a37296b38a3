"""The world of an embedded run: what a reader gets whose log no longer has what it asks for."""

from __future__ import annotations

import pyarrow as pa

from boreal.frames import INFINITY, Boundary, Data, LogId, Start
from reconcile.events import InstanceId, Read
from services.embedded.sources import ORIGIN
from services.embedded.world import ModelClock, World
from services.log.memory import MemoryLogStore
from services.store.memory import MemoryCheckpointStore
from tests.harness import MS, plan_of, query_of

A = LogId("a", "", 0)
WHO = InstanceId("main", "r0", 0)


def world_with_rows(count: int) -> World:
    """One row a frame, all of them taken by the instance; the first half is trimmed then."""
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
    world.logs.open(A).trim(count // 2)
    return world


def test_rows_to_read_again_that_no_log_holds_any_more_end_the_life_that_needs_them() -> None:
    """R27: that the next rows can be had does not help; else it would ask for the trimmed ones for ever."""
    world = world_with_rows(10)
    process = world.processes[WHO]
    assert process.instance is not None and process.instance.links[0].port.tape.next_id == 10
    life = process.life
    world._read(process, life, Read(A, 0, 1 << 20, 1))
    assert process.life != life


def test_rows_to_read_again_that_the_log_still_holds_are_given() -> None:
    world = world_with_rows(10)
    process = world.processes[WHO]
    life = process.life
    world._read(process, life, Read(A, 7, 1 << 20, 1))
    assert process.life == life and not world.breaches
