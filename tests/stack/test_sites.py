"""Two sites, a real broker each, that are cut from each other: both go on with what they have, and agree in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bench.deployment import Deployment, wait_until
from tests.stack.breaking import QUERY, X_S, Bench, figures_of, flowing, replay, report

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]


@contextmanager
def cut_in_two(deployment: Deployment) -> Iterator[None]:
    """Nobody of one site reaches the other one."""
    layout = deployment.layout
    site_of: dict[str, Callable[[str], str]] = {
        "node": layout.site_of_replica,
        "source": layout.site_of_stream,
        "egress": str,
    }
    with ExitStack() as cuts:
        for name, service in deployment.services.items():
            kind, _, part = name.rpartition(".")
            own = site_of[kind.partition(".")[0]](part) if kind else layout.home
            for site, link in service.links.items():
                if site != own:
                    link.cut()
                    cuts.callback(link.heal)
        yield


def assert_same_at_b(deployment: Deployment) -> None:
    """Clients of the other site come to hold what those at home do."""
    stable = deployment.stable()

    def there() -> list[dict[str, Any]]:
        return [row for row in replay(deployment.changes("b")) if row["_kind"] == "stable"]

    wait_until(lambda: len(there()) >= len(stable), "the other site has all rows too", deployment.explain)
    assert there()[: len(stable)] == [{**row, "_kind": "stable"} for row in stable]


HALVES = {"left": QUERY["streams"]["left"], "right": {**QUERY["streams"]["right"], "site": "b"}}
QUERIES = {"halves": {**QUERY, "name": "halves", "streams": HALVES}, "sites": {**QUERY, "name": "sites"}}
"""Of halves, left and r0 are at a, the home site; right and r1 at b. Of sites, both streams are at a."""


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The deployment of one of QUERIES. It ends before that of the next one begins: two at a time starve each other."""
    with flowing(tmp_path_factory.mktemp(request.param), QUERIES[request.param], ("a", "b")) as bench:
        yield bench


with_halves = pytest.mark.parametrize("bench", ["halves"], indirect=True)
with_sites = pytest.mark.parametrize("bench", ["sites"], indirect=True)


@pytest.mark.soak
@with_halves
def test_each_of_two_sites_goes_on_with_the_streams_that_it_has(bench: Bench) -> None:
    """The cut that DPC is about: each side answers within X, with what it has; both agree in the end."""
    deployment = bench.deployment
    bench.breathe(1)
    since = {"a": bench.mark(), "b": len(deployment.changes("b"))}
    with cut_in_two(deployment):
        bench.breathe(2 * X_S)
    figures = bench.check(since["a"])
    report("two sites with a stream each are cut from each other", figures)
    assert_same_at_b(deployment)
    for site, missing in (("a", "right"), ("b", "left")):
        changes = deployment.changes(site)
        tentative = [record for record in changes[since[site] :] if record["type"] == "tentative"]
        named = {(record["cause"], *record["missing_inputs"]) for record in tentative}
        assert any(inputs == [missing] for _, *inputs in named), (site, named)
        delay_ms = figures_of(changes[since[site] :], changes[: since[site]])["delay_new_ms_max"]
        assert delay_ms <= bench.x_ms or not bench.may_be_timed


@pytest.mark.soak
@with_halves
def test_a_replica_that_has_lost_all_inputs_is_left_for_one_that_still_answers(bench: Bench) -> None:
    """Both are in UP_FAILURE, since a stream is missing everywhere. The one that is read then loses the other stream, too."""
    deployment = bench.deployment
    _await_read_from(deployment, "a", "r0")
    since = bench.mark()
    with deployment.frozen("source.left"):
        bench.breathe(1.2 * X_S)
        # Right is at b, and r0 is at a, where it goes on writing.
        with deployment.cut("node.r0", "b"):
            _await_read_from(deployment, "a", "r1")
    report("a replica loses its last input while another stream is missing", bench.check(since))


@with_sites
def test_each_egress_reads_the_replica_of_its_own_site_and_comes_back_to_it(bench: Bench) -> None:
    """So a cut between the sites, or the death of what is at the other one, does not concern its clients."""
    deployment = bench.deployment
    for site, replica in (("a", "r0"), ("b", "r1")):
        _await_read_from(deployment, site, replica)
    since = bench.mark()
    with deployment.dead("node.r0"):
        _await_read_from(deployment, "a", "r1")
    deployment.wait_ready()
    _await_read_from(deployment, "a", "r0")
    report("a replica dies, and its readers return to it", bench.check(since))
    assert_same_at_b(deployment)


def _await_read_from(deployment: Deployment, site: str, replica: str) -> None:
    wait_until(lambda: _read_from(deployment, site) == {replica}, f"the egress of {site} reads {replica}", deployment.explain)


def _read_from(deployment: Deployment, site: str) -> set[str]:
    """The replica that what clients at a site were given last came from."""
    return {record["replica"] for record in deployment.changes(site)[-1:]}


@pytest.mark.soak
@with_sites
@pytest.mark.parametrize("length", [0.25 * X_S, 2 * X_S])
def test_two_sites_that_are_cut_from_each_other_agree_in_the_end(bench: Bench, length: float) -> None:
    deployment = bench.deployment
    since = bench.mark()
    with cut_in_two(deployment):
        bench.breathe(length)
    figures = bench.check(since)
    report(f"two sites are cut from each other for {length:g} s", figures)
    if bench.may_be_timed:
        assert figures["tentative"] == 0, "the home site has all it needs"
    assert_same_at_b(deployment)
