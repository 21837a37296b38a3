"""Which jobs wait, run and have ended: a machine without files, processes and clock.

`handle(event, now_ms)` returns what is to be done, in order. A job is saved before it is started, so that one that was started
is known after any crash. `begin` takes the jobs that were saved: those that an end of the API has interrupted wait again, and
run from their beginning, since a job has no effect but its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, assert_never

ATTEMPTS = 3
"""How often a job is begun: one whose runs end the API must not end it for ever."""


class JobState(Enum):
    """How far a job is."""

    QUEUED = "queued"
    """It waits for others."""
    RUNNING = "running"
    """Its process runs."""
    DONE = "done"
    """There is a result."""
    FAILED = "failed"
    """It has ended without a result; its problem says why."""
    CANCELLED = "cancelled"
    """Somebody has ended it."""

    @property
    def is_over(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Times are milliseconds since the Unix epoch."""

    id: str
    """Its id."""
    query: str
    """The name of the query that it is about."""
    by: str
    """Who has asked for it."""
    created_ms: float
    """When that was."""
    kind: str = "comparison"
    """What it is: which of the job routes shows it."""
    state: JobState = JobState.QUEUED
    """How far it is."""
    started_ms: float | None = None
    """When its process was started the last time."""
    ended_ms: float | None = None
    """When it was over."""
    attempts: int = 0
    """How often its process was started."""
    problem: dict[str, Any] | None = None
    """Why it failed: {field, value, problem, fix}."""


# Events


@dataclass(frozen=True, slots=True)
class NewJob:
    """A new job is asked for; its id is not taken."""

    job: Job
    """The job, QUEUED."""


@dataclass(frozen=True, slots=True)
class JobCancellation:
    """A job is no longer wanted; nothing happens if it is over."""

    id: str
    """The id of the job."""


@dataclass(frozen=True, slots=True)
class JobDeletion:
    """A job is to be forgotten, whatever its state."""

    id: str
    """The id of the job."""


@dataclass(frozen=True, slots=True)
class JobExit:
    """The process of a job has ended."""

    id: str
    """The id of the job."""
    problem: dict[str, Any] | None
    """Why it has no result: {field, value, problem, fix}; None if it has one."""


Event = NewJob | JobCancellation | JobDeletion | JobExit


# Effects


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Keep the job as it is now, so that a crash does not lose it."""

    job: Job
    """The job."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start the process of a job. `JobExit` follows, whatever happens."""

    id: str
    """The id of the job."""


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop the process of a job, and return when it has stopped."""

    id: str
    """The id of the job."""


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Remove all that is kept of a job."""

    id: str
    """The id of the job."""


Effect = SaveJob | StartJob | StopJob | RemoveJob


class JobQueue:
    """The jobs of an installation, by id. At most `at_once` run at the same time, the oldest first."""

    def __init__(self, at_once: int) -> None:
        self.jobs: dict[str, Job] = {}
        self._at_once = at_once

    def begin(self, saved: Iterable[Job], now_ms: float) -> list[Effect]:
        """Take up the jobs that were saved; none of their processes runs any more."""
        effects: list[Effect] = []
        for job in sorted(saved, key=lambda each: (each.created_ms, each.id)):
            if job.state is JobState.RUNNING and job.attempts >= ATTEMPTS:
                problem = f"was begun {job.attempts} times, and the API ended each time before it was over"
                said = {"field": "id", "value": job.id, "problem": problem, "fix": "send a smaller one"}
                effects += self._keep(replace(job, state=JobState.FAILED, ended_ms=now_ms, problem=said))
            elif job.state is JobState.RUNNING:
                effects += self._keep(replace(job, state=JobState.QUEUED))
            else:
                self.jobs[job.id] = job
        return effects + self._start_next(now_ms)

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """What an event asks for. KeyError for a job that is not known, unless it has ended."""
        match event:
            case NewJob(job):
                effects = self._keep(job)
            case JobCancellation(id_):
                effects = self._cancel(self.jobs[id_], now_ms)
            case JobDeletion(id_):
                job = self.jobs.pop(id_)
                effects = [StopJob(id_), RemoveJob(id_)] if job.state is JobState.RUNNING else [RemoveJob(id_)]
            case JobExit(id_, problem):
                effects = self._end(self.jobs.get(id_), problem, now_ms)
            case _:
                assert_never(event)
        return effects + self._start_next(now_ms)

    def end(self) -> list[Effect]:
        """The API ends in good order: what runs will run again, and this time does not count."""
        effects: list[Effect] = []
        for job in [each for each in self.jobs.values() if each.state is JobState.RUNNING]:
            effects.append(StopJob(job.id))
            effects += self._keep(replace(job, state=JobState.QUEUED, attempts=job.attempts - 1))
        return effects

    @property
    def waiting(self) -> int:
        """How many jobs are not over."""
        return sum(not job.state.is_over for job in self.jobs.values())

    def _cancel(self, job: Job, now_ms: float) -> list[Effect]:
        if job.state.is_over:
            return []
        stop: list[Effect] = [StopJob(job.id)] if job.state is JobState.RUNNING else []
        return stop + self._keep(replace(job, state=JobState.CANCELLED, ended_ms=now_ms))

    def _end(self, job: Job | None, problem: dict[str, Any] | None, now_ms: float) -> list[Effect]:
        """One that was cancelled or deleted meanwhile stays so."""
        if job is None or job.state is not JobState.RUNNING:
            return []
        state = JobState.DONE if problem is None else JobState.FAILED
        return self._keep(replace(job, state=state, ended_ms=now_ms, problem=problem))

    def _start_next(self, now_ms: float) -> list[Effect]:
        running = sum(job.state is JobState.RUNNING for job in self.jobs.values())
        queued = [job for job in self.jobs.values() if job.state is JobState.QUEUED]
        effects: list[Effect] = []
        for job in sorted(queued, key=lambda each: (each.created_ms, each.id))[: max(self._at_once - running, 0)]:
            effects += self._keep(replace(job, state=JobState.RUNNING, started_ms=now_ms, attempts=job.attempts + 1))
            effects.append(StartJob(job.id))
        return effects

    def _keep(self, job: Job) -> list[Effect]:
        self.jobs[job.id] = job
        return [SaveJob(job)]
