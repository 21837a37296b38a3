"""The roles of workers, threads and all, over a simulated Kafka: seeds whose results must be right, seeded bugs that some seed
must show, and the same course of events each time."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from role_simulation.mutants import MUTANTS
from role_simulation.scenario import OF_A_WORKER
from role_simulation.scheduler import ProcessKilled, Scheduler, SimulatedProcess, Stuck, begin_run, end_run
from role_simulation.threads import Condition, Lock, SimpleQueue, Thread, sleep

CAUGHT_AT: dict[str, int] = {
    "source_repeats_a_record": 0,
    "source_skips_a_record": 0,
    "source_does_not_repeat_the_batch": 2,
    "second_writer_is_not_noticed": 12,
    "follower_begins_too_late": 0,
    "readers_are_left": 0,
    "trimmed_by_the_fastest": 101,
    "out_place_is_ignored": 2,
    "stable_begins_at_the_end_of_out": 2,
    "stable_end_is_not_read": 2,
    "stable_outside_its_transaction": 1,
    "stable_before_out": 1,
    "old_end_is_good_enough": 1,
}
"""A seed that shows each mutant."""

FAULTS_OF: dict[str, str] = {"stable_outside_its_transaction": "twin"}
"""The faults that the seed has then, where those that it draws seldom show a mutant."""

CAUGHT_JOINED_AT: dict[str, int] = {
    "local_readers_outlive_their_writer": 66,
    "placement_keeps_the_dead": 2,
    "replicas_share_a_worker": 66,
}
"""The same where workers have joined their sites, and roles move."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the order of its sets does not differ from run to run."""
    command = [sys.executable, "-m", "role_simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False)


def test_the_results_of_some_seeds_are_right() -> None:
    done = simulate("--seeds", "2", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("kind", OF_A_WORKER)
def test_the_results_are_right_where_one_kind_of_fault_strikes_again_and_again(kind: str) -> None:
    done = simulate("--faults", kind, "--seeds", "20")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_results_of_a_seed_are_right_where_a_supervisor_places_the_roles() -> None:
    done = simulate("--joined", "--seeds", "1", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("options", [("--first", "2", "--seeds", "200"), ("--joined", "--first", "1", "--seeds", "100")])
def test_the_results_of_many_seeds_are_right(options: tuple[str, ...]) -> None:
    done = simulate(*options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(("mutant", "seed"), sorted({**CAUGHT_AT, **CAUGHT_JOINED_AT}.items()))
def test_each_seeded_bug_is_shown_by_a_seed(mutant: str, seed: int) -> None:
    joined = ["--joined"] if mutant in CAUGHT_JOINED_AT else []
    faults = ["--faults", FAULTS_OF[mutant]] if mutant in FAULTS_OF else []
    done = simulate(*joined, *faults, "--first", str(seed), "--seeds", "1", "--processes", "1", "--mutant", mutant)
    assert done.returncode == 1 and f"seed {seed}:" in done.stdout, done.stdout + done.stderr


def test_no_seeded_bug_is_left_out() -> None:
    assert [*MUTANTS] == [*CAUGHT_AT, *CAUGHT_JOINED_AT]


@pytest.mark.soak
@pytest.mark.parametrize("joined", [(), ("--joined",)], ids=["fixed", "joined"])
def test_a_course_of_events_is_the_same_again(joined: tuple[str, ...]) -> None:
    first, again = (simulate(*joined, "--seeds", "1", "--processes", "1", "--digest") for _ in range(2))
    assert first.returncode == 0 and "digest" in first.stdout, first.stdout + first.stderr
    assert first.stdout == again.stdout


# The scheduler


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(Random(1))


@pytest.fixture(autouse=True)
def in_run(scheduler: Scheduler):
    begin_run(scheduler)
    yield
    end_run(scheduler)


def test_a_condition_wakes_who_waits_and_a_wait_ends_at_its_timeout(scheduler: Scheduler) -> None:
    changed, seen = Condition(), []

    def wait() -> None:
        with changed:
            seen.append(changed.wait_for(lambda: "value" in seen, timeout=1))
        with changed:
            seen.append(changed.wait_for(lambda: False, timeout=2))
        seen.append(scheduler.now_us)

    def tell() -> None:
        sleep(0.5)
        with changed:
            seen.append("value")
            changed.notify()

    process = SimulatedProcess("p")
    scheduler.start(process, "waits", wait)
    scheduler.start(process, "tells", tell)
    scheduler.run(10_000_000)
    assert seen[:3] == ["value", True, False]
    assert 2_500_000 <= seen[3] < 2_501_000


def test_a_killed_process_does_nothing_more_and_leaves_its_locks(scheduler: Scheduler) -> None:
    lock, seen = Lock(), []

    def hold() -> None:
        try:
            with lock:
                sleep(5)
                seen.append("held on")
        except ProcessKilled:
            seen.append("killed")
            raise

    process = SimulatedProcess("p")
    scheduler.start(process, "holds", hold)
    scheduler.call(1_000_000, lambda: scheduler.kill(process))
    scheduler.run(10_000_000)
    assert seen == ["killed"] and not lock.locked() and not scheduler.errors


def test_a_frozen_process_goes_on_where_it_was(scheduler: Scheduler) -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    seen: list[tuple[int, int]] = []
    process, other = SimulatedProcess("frozen"), SimulatedProcess("other")

    def take() -> None:
        while True:
            seen.append((queue.get(), scheduler.now_us // 1_000_000))

    def put() -> None:
        for number in range(4):
            sleep(1)
            queue.put(number)

    def freeze() -> None:
        process.is_frozen = True

    scheduler.start(process, "takes", take)
    scheduler.start(other, "puts", put)
    scheduler.call(1_500_000, freeze)
    scheduler.call(6_000_000, lambda: scheduler.thaw(process))
    scheduler.run(10_000_000)
    assert seen == [(0, 1), (1, 6), (2, 6), (3, 6)]


def test_threads_belong_to_the_process_that_starts_them_and_their_errors_are_seen(scheduler: Scheduler) -> None:
    process = SimulatedProcess("p")

    def begin() -> None:
        thread = Thread(target=lambda: 1 / 0, name="fails")
        thread.start()
        thread.join()
        assert not thread.is_alive()

    scheduler.start(process, "begins", begin)
    scheduler.run(1_000_000)
    assert [(thread.name, thread.process, type(error)) for thread, error in scheduler.errors] == [
        ("fails", process, ZeroDivisionError)
    ]
    assert not process.threads


def test_a_loop_that_never_waits_is_found(scheduler: Scheduler) -> None:
    def spin() -> None:
        while True:
            sleep(0)

    scheduler.start(SimulatedProcess("p"), "spins", spin)
    with pytest.raises(Stuck, match="more than 20000 turns at"):
        scheduler.run(1_000_000)
