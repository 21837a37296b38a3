"""The placement of roles over workers that come and go."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.placement_record import Assignment, PlacementRecord, RoleReport, WorkerReport
from deployment.placer import (
    AVOID_US,
    DETECTION_US,
    GATHERING_US,
    LEAST_DETECTION_US,
    PlacementChanged,
    Placer,
    PlacerTick,
    RecordFound,
    RolesKnown,
    RoleUnwanted,
    RoleWanted,
    RoleWeighed,
    SelfHeard,
    WorkerHeard,
    config_of,
)
from tests.thoroughness import some
from tests.unit.deployment.placing import HEARTBEAT_US, STEP_US, Site, Worker, roles_of

DETECTED_S = (DETECTION_US + HEARTBEAT_US) / 1e6 + 0.2
BEGUN_S = GATHERING_US / 1e6 + 3


def site_of(queries: int, workers: int) -> tuple[Site, list[Worker]]:
    """Queries that run, in so many workers, each on a machine of its own."""
    site = Site()
    site.want([child for number in range(queries) for child in roles_of(f"q{number}")])
    joined = [site.join(f"w{number}") for number in range(workers)]
    site.run(BEGUN_S)
    return site, joined


def all_run(site: Site) -> None:
    """Each role runs in one worker that is there, the one that the record has, and is ready."""
    assert site.places().keys() == site.children.keys()
    assert site.ready() == set(site.places().items())


def machines_of_replicas(site: Site) -> Counter[tuple[str, str]]:
    machine = {worker.incarnation: worker.machine for worker in site.workers.values()}
    nodes = {name: at for name, at in site.places().items() if name.startswith("node.")}
    return Counter((name.split(".")[1], machine[at]) for name, at in nodes.items())


def test_roles_are_shared_by_the_workers_that_begin_together() -> None:
    site, _ = site_of(4, 3)
    all_run(site)
    assert site.loads() == [6, 7, 7] and len(site.records) == 1


def test_without_a_worker_it_is_said_how_one_joins() -> None:
    site, _ = site_of(1, 0)
    assert site.placer.problem_of("q0", site.now) == "no worker has joined site a: run boreal worker --site a"
    assert not site.places()
    site.join("w")
    site.run(BEGUN_S)
    assert "node.q0.r0" in site.places() and "node.q0.r1" not in site.places()
    problem = site.placer.problem_of("q0", site.now)
    assert problem == "each worker of site a runs another replica: start one more for node.q0.r1"
    site.join("x")
    site.run(BEGUN_S)
    assert site.placer.problem_of("q0", site.now) is None


def test_all_roles_of_a_dead_worker_go_to_others_within_the_detection_time() -> None:
    site, workers = site_of(4, 3)
    before = site.places()
    lost = {name for name, at in before.items() if at == workers[0].incarnation}
    site.kill(workers[0])
    site.run(DETECTED_S)
    after = site.places()
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == lost
    assert {each.name for each in site.ended} == lost and site.ended[0].name.startswith("egress")
    site.run(1)
    all_run(site)


def test_a_worker_that_joins_takes_its_share_one_role_at_a_time_and_no_more() -> None:
    site, _ = site_of(4, 2)
    before, site.unready_max = site.places(), 0
    new = site.join("new")
    new.start_us = 2_500_000
    site.run(30)
    all_run(site)
    moved = {name for name, at in site.places().items() if at != before[name]}
    assert {site.places()[name] for name in moved} == {new.incarnation}
    assert site.loads() == [6, 7, 7] and len(moved) == 6
    assert site.unready_max == 1
    assert not site.ended, "nobody had to be started again"


def test_no_role_moves_while_another_of_its_query_is_not_ready() -> None:
    site, workers = site_of(3, 2)
    for worker in workers:
        worker.broken = frozenset({"source.q0.s0"})
    site.run(1)
    before = site.places()
    site.join("new")
    site.run(15)
    moved = {name.split(".")[1] for name, at in site.places().items() if at != before[name]}
    assert moved == {"q1", "q2"}


def test_a_role_leaves_a_worker_that_lacks_what_it_needs_to_others_though_that_has_the_least_load() -> None:
    """A replica has no other place if there are two workers, and waits there; in time it is tried again."""
    site = Site()
    good, bad = site.join("good"), site.join("bad")
    bad.lacks = frozenset({"q0"})
    site.want([*roles_of("q0"), *roles_of("q1")])
    site.run(BEGUN_S + 10)
    there = {name for name, at in site.places().items() if at == bad.incarnation and ".q0." in name}
    assert len(there) == 1 and there < {"node.q0.r0", "node.q0.r1"}
    assert {name for name, _ in site.ready()} == site.children.keys() - there
    site.join("third")
    site.run(30)
    all_run(site)
    assert not [name for name, at in site.places().items() if at == bad.incarnation and ".q0." in name]
    failures = len(site.ended)
    bad.lacks = frozenset()
    site.kill(good)
    site.run(AVOID_US / 1e6)
    all_run(site)
    assert len(site.ended) < failures + len(site.children), "those of the worker that died"


def test_a_heavy_role_drives_others_from_its_worker() -> None:
    site, workers = site_of(2, 2)
    [source, *_] = [name for name, at in site.places().items() if at == workers[0].incarnation and name.startswith("source")]
    site.tell(RoleWeighed(source, 20))
    site.run(15)
    all_run(site)
    there = {name for name, at in site.places().items() if at == site.places()[source]}
    replicas = {name for name in there if name.startswith("node")}
    assert there == {source, *replicas} and len(replicas) == 2, "replicas must be in different workers"


def test_a_replica_leaves_the_machine_of_another_when_there_is_a_second() -> None:
    site = Site()
    site.want([child for child in roles_of("q") if child.kind == "node"])
    for name in "vw":
        site.join(name, "m1")
    site.run(BEGUN_S)
    assert machines_of_replicas(site) == {("q", "m1"): 2}
    site.join("x", "m2")
    site.run(0.1)
    site.want(roles_of("p", replicas=0, streams=0))  # so that the loads are even
    site.run(0.1)
    assert site.places()["egress.p.a"] == "x/3"
    site.run(5)
    assert machines_of_replicas(site) == {("q", "m1"): 1, ("q", "m2"): 1}


def test_a_worker_that_leaves_in_order_is_replaced_at_once() -> None:
    site, workers = site_of(1, 3)
    [egress_at] = [worker for worker in workers if worker.incarnation == site.places()["egress.q0.a"]]
    site.kill(egress_at)
    said = egress_at.report(site.now)
    site.tell(WorkerHeard(replace(said, roles={}, leaves=True)))
    site.run(0.1)
    assert site.places().keys() == site.children.keys()


def test_while_the_supervisor_hears_nothing_nobody_counts_as_dead() -> None:
    site, _ = site_of(2, 2)
    before = len(site.records)
    site.is_cut = True
    site.run(59.9)  # what is heard first then is the supervisor itself
    site.is_cut = False
    site.run(5)
    all_run(site)
    assert len(site.records) == before


def lost_after_s(site: Site, worker: Worker) -> float:
    """How long it takes from the last sign of a worker until its roles are placed elsewhere."""
    spoke_at = worker.spoke_at
    site.kill(worker)
    while worker.incarnation in site.places().values():
        site.run(STEP_US / 1e6)
    return (site.now - spoke_at) / 1e6


def test_a_worker_that_has_spoken_regularly_is_lost_within_a_second() -> None:
    site, workers = site_of(2, 3)
    site.run(60)
    assert LEAST_DETECTION_US / 1e6 < lost_after_s(site, workers[0]) <= LEAST_DETECTION_US / 1e6 + 0.3


def test_a_new_worker_and_one_that_is_slow_to_speak_are_waited_for() -> None:
    site, workers = site_of(2, 3)
    assert lost_after_s(site, workers[0]) > 2
    for _ in range(30):
        workers[1].is_frozen = True
        site.run(0.6)
        workers[1].is_frozen = False
        site.run(1.4)
    assert not [each for each in site.ended if workers[1].name in each.why]
    assert 2 < lost_after_s(site, workers[1]) <= DETECTED_S


def test_a_supervisor_that_stood_still_takes_nobody_for_dead_whom_it_hears_first_then() -> None:
    site, workers = site_of(2, 3)
    site.run(60)
    before = len(site.records)
    for pause_s in (1.1, 5.3, 60.7):
        site.is_cut = True
        site.run(pause_s)
        site.is_cut = False
        for worker in workers:  # what each has said meanwhile comes after what the others have
            for _ in range(5):
                site.tell(WorkerHeard(worker.report(site.now)))
                site.tell(PlacerTick())
        site.run(2)
    all_run(site)
    assert len(site.records) == before and not site.ended


def test_a_worker_that_was_frozen_ends_what_it_has_lost_and_takes_its_share() -> None:
    site, workers = site_of(4, 3)
    workers[0].is_frozen = True
    site.run(DETECTED_S)
    assert workers[0].incarnation not in site.places().values()
    workers[0].is_frozen = False
    site.run(20)
    all_run(site)
    assert site.loads() == [6, 7, 7]


def test_another_supervisor_goes_on_where_the_record_is() -> None:
    site, _ = site_of(4, 3)
    before, written = site.record, len(site.records)
    site.begin()
    site.run(10)
    assert site.record == before and len(site.records) == written and not site.ended


def test_another_supervisor_starts_again_what_has_changed() -> None:
    site, _ = site_of(2, 2)
    changed = {name: replace(child, turn="u") for name, child in site.children.items() if child.query == "q0"}
    site.children |= changed
    before = site.record
    site.begin()
    site.run(3)
    all_run(site)
    assert before is not None and site.record is not None
    assert {name for name, at in site.record.roles.items() if at != before.roles[name]} == changed.keys()


def test_another_supervisor_replaces_a_worker_that_died_with_the_first_and_ends_what_is_not_wanted() -> None:
    site, workers = site_of(4, 3)
    site.kill(workers[0])
    for child in roles_of("q3"):
        del site.children[child.name]
    site.begin()
    site.run(DETECTED_S + 2)
    all_run(site)
    assert len(site.places()) == 15


def test_of_two_workers_of_one_name_the_second_is_refused_and_disturbs_nobody() -> None:
    site, workers = site_of(2, 2)
    before = site.places()
    second = site.join("w0")
    site.run(10)
    all_run(site)
    assert site.places() == before
    assert second.hosted.refused == "another worker of site a has the name w0: give --name"
    site.kill(workers[0])
    site.run(DETECTED_S + 2)
    all_run(site)
    assert second.hosted.refused is None and second.incarnation in site.places().values()


def test_another_supervisor_hears_the_second_of_a_name_first_and_the_one_that_runs_roles_keeps_it() -> None:
    [child, *_] = roles_of("q")
    first = Assignment("w1", "first", 1, 1, config_of(child))
    placer = Placer("a", "1")
    second = WorkerReport(first.worker, "second", "m", "1", 0, {})
    placer.handle(WorkerHeard(second), 1_000_000)
    placer.handle(RecordFound(PlacementRecord("a", 1, "1", {child.name: first})), 1_100_000)
    for event in (RoleWanted(child), RolesKnown(), SelfHeard()):
        placer.handle(event, 1_200_000)
    assert placer.handle(PlacerTick(), 1_300_000) == [], "the first may be dead"
    runs = {child.name: RoleReport(1, True)}
    placer.handle(WorkerHeard(replace(second, incarnation="first", roles=runs)), 1_400_000)
    [changed] = placer.handle(PlacerTick(), 1_500_000)
    assert isinstance(changed, PlacementChanged)
    assert changed.record.refused.keys() == {"second"} and changed.record.roles == {child.name: first}


def test_a_worker_of_another_program_is_refused_and_says_why() -> None:
    site, _ = site_of(2, 2)
    before = site.places()
    other = site.join("x", program="2")
    site.run(10)
    assert site.places() == before
    assert other.hosted.refused == "worker x runs boreal 2, and the supervisor 1: start it with the same version"


def test_after_an_upgrade_of_the_supervisor_roles_move_to_workers_that_are_upgraded_too() -> None:
    site, old = site_of(2, 2)
    site.program = "2"
    site.begin()
    site.run(10)
    all_run(site)
    for number in range(2):
        site.join(f"n{number}", program="2")
    site.run(40)
    for worker in old:
        assert worker.incarnation not in site.places().values()
        site.kill(worker)
    all_run(site)
    assert not site.ended


def test_numbers_rise_though_the_topic_was_lost() -> None:
    site, _ = site_of(2, 2)
    site.join("x")
    site.run(5)
    highest = site.records[-1].number
    site.record = None
    site.begin()
    site.run(5)
    assert site.record is not None and site.record.number > highest
    assert not site.ended
    all_run(site)


ACTIONS = ("weigh", "join", "kill", "freeze", "thaw", "cut", "heal", "begin", "query", "delete", "duplicate")


def play(seed: int, steps: int, machines: int) -> Site:
    """Workers that come and go at random, and a calm end with two workers at least."""
    chance, site = random.Random(seed), Site()
    for step in range(steps):
        workers = sorted(site.workers.values(), key=lambda worker: worker.incarnation)
        match chance.choice(ACTIONS):
            case "join":
                site.join(f"w{chance.randrange(6)}-{step}", f"m{chance.randrange(machines)}")
            case "duplicate" if workers:
                site.join(chance.choice(workers).name, f"m{chance.randrange(machines)}")
            case "kill" if workers:
                site.kill(chance.choice(workers))
            case "freeze" if workers:
                chance.choice(workers).is_frozen = True
            case "thaw" if workers:
                chance.choice(workers).is_frozen = False
            case "cut":
                site.is_cut = True
            case "heal":
                site.is_cut = False
            case "begin":
                site.begin()
            case "weigh" if site.children:
                site.is_weighed = True
                site.tell(RoleWeighed(chance.choice(sorted(site.children)), chance.randrange(1, 20)))
            case "query":
                site.want(roles_of(f"q{step}", chance.randrange(1, 4)))
            case "delete" if site.children:
                gone = chance.choice(sorted(site.children)).split(".")[1]
                for name in [name for name in site.children if name.split(".")[1] == gone]:
                    del site.children[name]
                    site.tell(RoleUnwanted(name))
            case _:
                pass
        site.run(chance.choice((0.1, 0.5, 2, 5)))
    site.is_cut = False
    for worker in site.workers.values():
        worker.is_frozen = False
    for number in range(3):
        site.join(f"calm{number}", f"m{number % machines}")
    site.run(20 + 3 * len(site.children))
    return site


@given(st.integers(min_value=0), st.integers(1, 25), st.integers(1, 3))
@settings(max_examples=some(150), deadline=None)
def test_whatever_came_and_went_each_role_runs_once_and_apart_and_then_nothing_moves(
    seed: int, steps: int, machines: int
) -> None:
    site = play(seed, steps, machines)
    accepted = [worker for worker in site.workers.values() if worker.hosted.refused is None]
    assert len({worker.name for worker in accepted}) == len(accepted)
    all_run(site)
    loads = Counter(site.places().values())
    if machines == 1 and not site.is_weighed:
        # Else replicas that must be apart may leave no choice.
        assert max(loads.values(), default=0) - min(loads[worker.incarnation] for worker in accepted) <= 1
    nodes = Counter(name.split(".")[1] for name in site.places() if name.startswith("node."))
    for (query, _), count in machines_of_replicas(site).items():
        assert count == 1 or nodes[query] > len({worker.machine for worker in accepted})
    written = len(site.records)
    site.run(10)
    assert len(site.records) == written


@given(st.integers(min_value=0), st.integers(1, 15))
@settings(max_examples=some(50), deadline=None)
def test_the_same_events_give_the_same_records(seed: int, steps: int) -> None:
    assert play(seed, steps, 2).records == play(seed, steps, 2).records
