"""The jobs of an installation: a folder and, while it runs, a process for each. For any thread.

DATA/jobs/ID holds `request.json`; `job.json`, how far it is, which this process writes; and what its own process writes:
`progress.json`, then `result.json`, or `problem.json` for a refusal, and meanwhile files in `work`. Each of the first appears
whole. What runs and what waits is decided by `api.job_queue`; here its effects are performed, in their order.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_never

from api.installation import BusyError, ConflictError, NotFoundError, UnavailableError
from api.job_queue import (
    Effect,
    Event,
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
from boreal.model.errors import UserError
from embedded.run_folder import write_whole

MOST_KEPT = 500
"""How many jobs may be there, those that are over included."""
MOST_WAITING = 20
"""How many jobs may wait or run."""

SAID_FOR_MS = 600_000.0
"""A job that is over is reported for so long, so that its end is recorded even if nobody listens for a while."""

COMMAND = (sys.executable, "-m", "api.job_process")
REQUEST, JOB, PROGRESS, RESULT, PROBLEM, SAID, WORK = (
    "request.json", "job.json", "progress.json", "result.json", "problem.json", "stderr.txt", "work",
)  # fmt: skip

LOCK = ".lock"
"""A name that no id has."""

OnJobs = Callable[[Sequence[Mapping[str, Any]]], None]

_logger = logging.getLogger("boreal.api")


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, the newest first."""

    jobs: Sequence[Job]
    """The jobs."""
    next: str | None
    """What to give as `after` for older ones; None if there are no more."""


class Jobs:
    """Starts, watches and ends jobs; those of an earlier process go on. One process does so for a folder, while it holds its
    lock. Others read what there is, and the first that is asked for a change when the lock is free goes on in its place."""

    def __init__(self, folder: Path, at_once: int = 1, command: Sequence[str] = COMMAND) -> None:
        """at_once: how many may run at the same time. command: what runs a job, with the job's folder as the last argument."""
        self._folder = folder
        self._command = tuple(command)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._queue = JobQueue(at_once)
        self._lock = threading.RLock()
        self._owned: int | None = None
        self._on_change: OnJobs = lambda jobs: None
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._own()

    def close(self) -> None:
        """Stop what runs. It will run again."""
        with self._lock:
            if self._owned is not None:
                self._perform(self._queue.end())
                os.close(self._owned)
                self._owned = None

    def tell(self, on_change: OnJobs) -> None:
        """Call `on_change` now, and after each change, with all jobs: the fields of `Job`, as JSON."""
        with self._lock:
            self._on_change = on_change
            self._tell()

    def _tell(self) -> None:
        if self._owned is not None:
            self._on_change(self._all())

    def _all(self) -> list[Mapping[str, Any]]:
        return [_shown(job) for job in self._queue.jobs.values()]

    def lately(self) -> list[Mapping[str, Any]]:
        """As `tell`, but of the jobs that are over only those that were within SAID_FOR_MS: for statuses, which come every
        second. None of them if another process has the lock, since that one says them."""
        since_ms = _now_ms() - SAID_FOR_MS
        with self._lock:
            jobs = self._all() if self._owned is not None else []
        return [job for job in jobs if job["ended_ms"] is None or job["ended_ms"] >= since_ms]

    # Reads

    def find(self, kind: str, id_: str) -> Job:
        """NotFoundError if there is no such job of this kind."""
        with self._lock:
            found = self._known().get(id_)
        if found is None or found.kind != kind:
            raise NotFoundError("ID", id_, "there is no such job", "GET the list for those that there are")
        return found

    def page(self, kind: str, after: str | None, limit: int) -> JobPage:
        """At most `limit` jobs of a kind, the newest first. after: `next` of the page before."""
        with self._lock:
            jobs = sorted((job for job in self._known().values() if job.kind == kind), key=_place, reverse=True)
        older = [job for job in jobs if after is None or _place(job) < _read_place(after)]
        more = "{:.0f}.{}".format(*_place(older[limit - 1])) if len(older) > limit else None
        return JobPage(older[:limit], more)

    def read(self, id_: str, name: str) -> dict[str, Any] | None:
        """What a file of a job holds; None before it is there."""
        return _read(self.path(id_, name))

    def path(self, id_: str, name: str) -> Path:
        """Where a file of a job is. id_: of a job that there is."""
        return self._folder / id_ / name

    # Changes

    def same(self, kind: str, id_: str, asked: Mapping[str, Any]) -> Job | None:
        """The job that has this id, if it was asked for in the same words; None if there is none. ConflictError."""
        with self._lock:
            job = self._known().get(id_)
            if job is not None and (job.kind != kind or (self.read(id_, REQUEST) or {}).get("asked") != asked):
                raise ConflictError(
                    "id", id_, "is the id of a job with another request", "choose another id, or delete that job"
                )
            return job

    def post(
        self,
        kind: str,
        id_: str | None,
        query: str,
        by: str,
        asked: Mapping[str, Any],
        fill: Callable[[Path], None] = lambda folder: None,
        **more: Any,
    ) -> Job:
        """Create a job, or return the one that was created by the same request. more: what its process needs beside `asked`.
        fill: writes files that it needs into its folder. ConflictError, BusyError, UnavailableError."""
        with self._lock:
            self._want()
            if id_ is not None and (old := self.same(kind, id_, asked)) is not None:
                return old
            if len(self._queue.jobs) >= MOST_KEPT:
                fix = "delete some that are over"
                raise ConflictError("id", id_, f"would be one job too many: there are {MOST_KEPT}", fix)
            if self._queue.waiting >= MOST_WAITING:
                problem = f"would have to wait for {MOST_WAITING} others"
                raise BusyError("id", id_, problem, "send it again when some are over, or cancel some")
            job = Job(id_ or _new_id(), query, by, _now_ms(), kind)
            folder = self._folder / job.id
            try:
                shutil.rmtree(folder, ignore_errors=True)  # of a job that was never saved
                folder.mkdir(parents=True)
                fill(folder)
                write_whole(folder / REQUEST, json.dumps({"kind": kind, "asked": asked, **more}))
                self._handle(NewJob(job))
            except OSError as error:
                raise UnavailableError("id", id_, f"cannot be written: {error}", "look at the disk") from None
            return self._queue.jobs[job.id]

    def cancel(self, kind: str, id_: str) -> Job:
        """End a job, and return when its process has ended. Nothing happens if it is over. NotFoundError,
        UnavailableError."""
        with self._lock:
            self._want()
            self.find(kind, id_)
            self._handle(JobCancellation(id_))
            return self._queue.jobs[id_]

    def delete(self, kind: str, id_: str) -> None:
        """End a job, and forget it. NotFoundError, UnavailableError."""
        with self._lock:
            self._want()
            self.find(kind, id_)
            self._handle(JobDeletion(id_))

    # The folder

    def _own(self) -> bool:
        """Take the lock, and take over the jobs of its last owner; False if another process has it."""
        if self._owned is None:
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._owned = lock
            self._perform(self._queue.begin(self._saved(), _now_ms()))
        return True

    def _want(self) -> None:
        """UnavailableError if another process has the lock."""
        if not self._own():
            problem = "can only be changed by another API of this installation, which runs the jobs"
            raise UnavailableError("id", None, problem, "ask that one")

    def _known(self) -> Mapping[str, Job]:
        return self._queue.jobs if self._owned is not None else {job.id: job for job in self._saved()}

    # Effects

    def _handle(self, event: Event) -> None:
        self._perform(self._queue.handle(event, _now_ms()))
        self._tell()

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SaveJob(job):
                    write_whole(self._folder / job.id / JOB, json.dumps(_shown(job)))
                case StartJob(id_):
                    self._start(id_)
                case StopJob(id_):
                    process = self._processes.pop(id_)
                    process.kill()
                    process.wait()
                    shutil.rmtree(self._folder / id_ / WORK, ignore_errors=True)
                case RemoveJob(id_):
                    shutil.rmtree(self._folder / id_, ignore_errors=True)
                case _:
                    assert_never(effect)

    def _start(self, id_: str) -> None:
        folder = self._folder / id_
        with (folder / SAID).open("wb") as said:
            # The process ends when this one does: its standard input ends then.
            process = subprocess.Popen([*self._command, folder], stdin=subprocess.PIPE, stdout=said, stderr=said)
        self._processes[id_] = process
        threading.Thread(target=self._watch, args=(id_, process), name=f"job {id_}", daemon=True).start()

    def _watch(self, id_: str, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        with self._lock:
            if self._processes.get(id_) is process:
                del self._processes[id_]
                shutil.rmtree(self._folder / id_ / WORK, ignore_errors=True)
                self._handle(JobExit(id_, self._problem(id_, status)))

    def _problem(self, id_: str, status: int) -> dict[str, Any] | None:
        """Why a process that has ended left no result; None if it did."""
        folder = self._folder / id_
        if status == 0 and (folder / RESULT).is_file():
            return None
        refusal = _read(folder / PROBLEM)
        if refusal is not None:
            return refusal
        ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        lines = (folder / SAID).read_text(errors="replace").strip().splitlines()
        why = f": {lines[-1][:300]}" if lines else ""
        return {
            "field": "id",
            "value": id_,
            "problem": f"its process ended {ended}{why}",
            "fix": "send a smaller one, or report it",
        }

    def _saved(self) -> list[Job]:
        found = []
        for path in sorted(self._folder.glob(f"*/{JOB}")):
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                found.append(Job(**{**saved, "state": JobState(saved["state"])}))
            except (OSError, ValueError, TypeError, KeyError) as error:
                _logger.warning("%s cannot be read: %r", path, error)
        return found


def _shown(job: Job) -> dict[str, Any]:
    return {**asdict(job), "state": job.state.value}


def _place(job: Job) -> tuple[float, str]:
    return job.created_ms, job.id


def _read_place(text: str) -> tuple[float, str]:
    at_ms, _, id_ = text.partition(".")
    if not (at_ms.isascii() and at_ms.isdecimal() and len(at_ms) <= 15):
        raise UserError("after", text, "is not `next` of a page", "leave it out to begin with the newest")
    return float(at_ms), id_


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _now_ms() -> float:
    """Whole: a place in the list is written with it."""
    return float(time.time_ns() // 1_000_000)


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
