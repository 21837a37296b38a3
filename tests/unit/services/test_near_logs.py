"""Which logs are nearest to an instance: what its own process writes, or else what its own site stores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from kafka import TopicPartition

from boreal.model.frames import LogId
from boreal.query.spec import load_query
from deployment.layout import Layout, make_layout
from reconcile.events import InstanceId, Near
from services.storage.local_logs import LocalLogs
from services.storage.log_reader import LogPath
from services.storage.near_logs import NearLogs
from tests.harness import query_of

WRITER = object()


def near_of(layout: Layout, who: InstanceId) -> tuple[NearLogs, LocalLogs]:
    local = LocalLogs()
    path = cast(LogPath, SimpleNamespace(local=local))
    return NearLogs(lambda log: path, layout, who), local


def layout_of_two_replicas(*sites: str) -> Layout:
    return make_layout(load_query(query_of()), sites)


def outputs(layout: Layout) -> list[LogId]:
    [logs] = layout.input_logs(layout.egress_instance("a")).values()
    return logs


def test_of_several_sites_the_own_one_is_nearest() -> None:
    layout = layout_of_two_replicas("a", "b")
    _, second = outputs(layout)
    assert near_of(layout, layout.egress_instance("b"))[0].find() == {second}


def test_what_the_process_writes_is_nearest_for_as_long_as_it_writes_it() -> None:
    layout = layout_of_two_replicas("a")
    first, second = outputs(layout)
    near, local = near_of(layout, layout.egress_instance("a"))
    told: list[Near] = []
    near.tell(told.append)
    place = TopicPartition(layout.topic_of(second), second.partition)
    local.confirm(WRITER, place, (), 5)
    local.end(WRITER, place)
    assert [said.logs for said in told] == [{first, second}, {second}, {first, second}]
    near.close()
    local.confirm(WRITER, place, (), 6)
    assert len(told) == 3


def test_a_stream_with_one_log_has_no_nearest() -> None:
    layout = layout_of_two_replicas("a")
    assert near_of(layout, layout.instances("r0")[0])[0].find() == frozenset()
