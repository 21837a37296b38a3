"""The queue of jobs, without files and processes."""

from __future__ import annotations

from api.job_queue import (
    ATTEMPTS,
    Job,
    JobCancellation,
    JobDeletion,
    JobExit,
    JobQueue,
    JobState,
    NewJob,
    RemoveJob,
    SaveJob,
    StartJob,
    StopJob,
)

PROBLEM = {"field": "id", "value": "a", "problem": "failed", "fix": "none"}


def job(id_: str, at_ms: float, **more: object) -> Job:
    return Job(id_, "departures", "ours (admin)", at_ms, **more)  # type: ignore[arg-type]


def queue(*ids: str) -> JobQueue:
    made = JobQueue(at_once=1)
    for at_ms, id_ in enumerate(ids):
        made.handle(NewJob(job(id_, at_ms)), at_ms)
    return made


def states(made: JobQueue) -> dict[str, str]:
    return {id_: each.state.value for id_, each in made.jobs.items()}


def test_one_runs_after_the_other_and_each_is_saved_before_it_starts() -> None:
    made = JobQueue(at_once=1)
    first = made.handle(NewJob(job("a", 1)), 1)
    assert first == [SaveJob(job("a", 1)), SaveJob(made.jobs["a"]), StartJob("a")] and made.jobs["a"].attempts == 1
    assert made.handle(NewJob(job("b", 2)), 2) == [SaveJob(job("b", 2))]
    assert made.waiting == 2
    assert made.handle(JobExit("a", None), 3) == [SaveJob(made.jobs["a"]), SaveJob(made.jobs["b"]), StartJob("b")]
    made.handle(JobExit("b", PROBLEM), 4)
    assert states(made) == {"a": "done", "b": "failed"} and made.jobs["b"].problem == PROBLEM and made.waiting == 0
    assert made.jobs["a"].ended_ms == 3


def test_as_many_run_at_once_as_are_allowed() -> None:
    made = JobQueue(at_once=2)
    for id_ in "abc":
        made.handle(NewJob(job(id_, 1)), 1)
    assert states(made) == {"a": "running", "b": "running", "c": "queued"}


def test_one_that_is_cancelled_or_deleted_stays_so_and_the_next_starts() -> None:
    made = queue("a", "b", "c", "d")
    assert made.handle(JobCancellation("a"), 5)[0] == StopJob("a")
    assert states(made) == {"a": "cancelled", "b": "running", "c": "queued", "d": "queued"}
    assert made.handle(JobCancellation("a"), 6) == [] and made.handle(JobExit("a", None), 6) == []
    made.handle(JobCancellation("c"), 7)
    assert made.handle(JobDeletion("b"), 8)[:2] == [StopJob("b"), RemoveJob("b")]
    assert states(made) == {"a": "cancelled", "c": "cancelled", "d": "running"} and made.handle(JobExit("b", None), 9) == []
    assert made.handle(JobDeletion("a"), 9) == [RemoveJob("a")]


def test_what_an_end_of_the_api_interrupts_runs_again_but_not_for_ever() -> None:
    made = queue("a", "b")
    saved = list(made.jobs.values())
    for attempt in range(2, ATTEMPTS + 1):
        again = JobQueue(at_once=1)
        again.begin(saved, 10)
        assert states(again) == {"a": "running", "b": "queued"} and again.jobs["a"].attempts == attempt
        saved = list(again.jobs.values())
    last = JobQueue(at_once=1)
    last.begin(saved, 11)
    assert states(last) == {"a": "failed", "b": "running"} and last.jobs["a"].problem is not None


def test_an_end_in_good_order_does_not_count() -> None:
    made = queue("a", "b")
    assert made.end() == [StopJob("a"), SaveJob(made.jobs["a"])]
    assert made.jobs["a"].state is JobState.QUEUED and made.jobs["a"].attempts == 0
    again = JobQueue(at_once=1)
    again.begin(made.jobs.values(), 9)
    assert states(again) == {"a": "running", "b": "queued"}
