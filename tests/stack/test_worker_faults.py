"""Two queries in shared workers, whose processes are broken: X and I1-I6 for both, as with a process for each role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from bench.deployment import Deployment, KafkaFeeder
from deployment.supervision import Child
from services.stack.links import ProxyLink
from tests.stack.breaking import QUERY, X_S, Bench, Ear, report

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

WORKERS = 3
"""One more than a query has replicas: the roles of one that ends go to two others."""


class Hosted(Deployment):
    """Only its sources have links of their own: the other roles share the clients of their workers."""

    def make_links(self, child: Child) -> dict[str, ProxyLink]:
        return {site: ProxyLink() for site in self.kafka} if child.kind == "source" else {}


@dataclass
class Shared:
    benches: list[Bench]

    @property
    def pool(self) -> Any:
        return self.benches[0].deployment.pool

    def roles_with(self, short: str) -> list[str]:
        """The roles in the worker of a role of the first query."""
        return list(self.pool.roles_of(self.benches[0].deployment.service(short).pid))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with ExitStack() as stack:
        first = stack.enter_context(Hosted(tmp_path_factory.mktemp("first"), {**QUERY, "name": "first"}, workers=WORKERS))
        streams = {name: {**stream, "topic": f"second.{name}"} for name, stream in QUERY["streams"].items()}
        query = {**QUERY, "name": "second", "streams": streams}
        second = stack.enter_context(Hosted(tmp_path_factory.mktemp("second"), query, beside=first))
        benches = []
        for deployment in (first, second):
            deployment.wait_ready()
            feeder = stack.enter_context(KafkaFeeder(deployment, rows_per_second=50, period_s=0.1))
            ear = stack.enter_context(Ear(deployment))
            benches.append(Bench(deployment, feeder, ear))
        yield Shared(benches)


def _a_worker_is_killed(shared: Shared) -> list[str]:
    roles = shared.roles_with("node.r0")
    shared.benches[0].deployment.kill("node.r0")
    shared.benches[0].breathe(3)
    return roles


def _a_worker_is_frozen_and_thaws(shared: Shared) -> list[str]:
    roles = shared.roles_with("node.r1")
    with shared.benches[0].deployment.frozen("node.r1"):
        shared.benches[0].breathe(1.5 * X_S)
    return roles


def _a_source_is_cut(shared: Shared) -> list[str]:
    with shared.benches[0].deployment.cut("source.left"):
        shared.benches[0].breathe(2 * X_S)
    return []


@pytest.mark.soak
@pytest.mark.parametrize("action", [_a_worker_is_killed, _a_worker_is_frozen_and_thaws, _a_source_is_cut])
def test_after_it_both_answers_are_right(shared: Shared, action: Callable[[Shared], list[str]]) -> None:
    """X holds but where the only egress, or a stream's only source, was in the worker that was stopped."""
    marks = [bench.mark() for bench in shared.benches]
    stopped = action(shared)
    for bench, since in zip(shared.benches, marks, strict=True):
        query = bench.deployment.spec.name
        is_hit = any(role.split(".")[1] == query and not role.startswith("node.") for role in stopped)
        figures = bench.check(since, may_be_late=is_hit)
        report(f"{action.__name__.strip('_')}: {query}", figures)
