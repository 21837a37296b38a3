"""Replays as jobs: a failure that is recorded, its rows and its faults, under another X, mode or policy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.comparisons import Id, OnProgress, Part, Short, blaming_fields, check_size, part_of, run_parts
from api.installation import ConflictError
from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from embedded.recording import Recording, Span, read_recording
from embedded.session import RunOptions, replay_session

RECORDING = "recording"
"""The folder of a job that has the rows."""

EXAMPLE: dict[str, Any] = {"id": "shorter-x", "delay_thresholds": ["3s", "1s"], "modes": ["overlay_redo"]}


class ReplayRequest(BaseModel):
    """The rows and faults of a recorded failure, under each X, mode and policy: a run for each combination."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})

    id: Id | None = Field(default=None, description="The id of the job; by default one is made. The same id with the same "
        "request is the same job.")  # fmt: skip
    delay_thresholds: list[Short] = Field(
        default=[], description="Each X; empty: that which was in force when the failure was detected.", max_length=20
    )
    modes: list[Short] | None = Field(
        default=None, description="The reconciliation modes; null: that which was in force.", min_length=1, max_length=3
    )
    policies: list[Short] | None = Field(
        default=None,
        description="Policies, FAILURE/STABILIZATION each; null: that which was in force.",
        min_length=1,
        max_length=9,
    )
    seed: int = Field(default=0, description="The seed of the model of work: a run repeats exactly.", ge=0, le=2**53)

    def asked(self, query: str, failure: str) -> dict[str, Any]:
        """What is asked for, without the id."""
        return {"query": query, "failure": failure, **self.model_dump(exclude={"id"})}


@dataclass(frozen=True, slots=True)
class Replay:
    """A failure, ready to be run again."""

    spec: Mapping[str, Any]
    """The query as it was when the failure was detected."""
    bucket_us: int
    """The length of its buckets, in microseconds of event time."""
    faults: Sequence[str]
    """What was broken, as `boreal run --fault` takes it."""
    recording: Recording
    """The rows."""


def span_of(failure: Mapping[str, Any]) -> Span:
    """From when to when a failure lasted. ConflictError if it goes on. failure: as `Failure.detail`."""
    if failure["ended_ms"] is None:
        raise ConflictError("ID", failure["id"], "is not over", "replay it when it is")
    return Span(round(failure["begun_ms"] * 1_000), round(failure["ended_ms"] * 1_000))


def faults_of(failure: Mapping[str, Any], streams: Collection[str], begin_us: int) -> list[str]:
    """The faults of a failure, in the time of a run that begins at `begin_us`: those that were made on purpose; if there were
    none, a cut of each instance from each of the `streams` that it missed, and a crash of each that was silent, for as long as
    that was. ConflictError if there is nothing to repeat."""
    struck = [each for each in failure["faults"] if each["ended_ms"] is None or each["ended_ms"] > failure["begun_ms"]]
    if struck:
        return [_at(each["fault"], failure, each["begun_ms"], each["ended_ms"], begin_us) for each in struck]
    found: dict[str, None] = {}
    for course in failure["instances"]:
        place, _, shard = course["instance"].rpartition(".")
        if not shard.isdecimal():
            continue  # an egress: it reads replicas, not streams
        is_silent = course["state"] == "FAILURE"
        since = course["detected_ms"] if is_silent else failure["begun_ms"]
        texts = [f"crash {place} for 1s"] if is_silent else [
            f"cut {stream} to {place} for 1s" for stream in course["missing"] if stream in streams
        ]  # fmt: skip
        found.update(dict.fromkeys(_at(text, failure, since, course["healed_ms"], begin_us) for text in texts))
    if not found:
        problem = "has no cause that could be repeated: no stream was missing, and no instance was silent"
        raise ConflictError("ID", failure["id"], problem, "replay another one")
    return list(found)


_FAULT = re.compile(r"(?P<what>.*?) for \S+(?P<losing> losing checkpoint)?(?: in \S+)?")


def _at(text: str, failure: Mapping[str, Any], from_ms: float, to_ms: float | None, begin_us: int) -> str:
    """A fault that began at once, as one that begins in time and lasts as long as it did. text: with its query, or without."""
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ConflictError("ID", failure["id"], f"has a fault that cannot be repeated: {text}", "replay another one")
    verb, target, *rest = match["what"].replace(f" {failure['query']}.", " ", 1).split()
    ended_us = round((failure["ended_ms"] if to_ms is None else to_ms) * 1_000)
    at_us = max(round(from_ms * 1_000) - begin_us, 0)
    for_us = max(ended_us - begin_us - at_us, 1)
    lasted = f"at {format_duration(at_us)} for {format_duration(for_us)}"
    return " ".join([verb, target, *rest, lasted]) + (match["losing"] or "")


def check(request: ReplayRequest, replay: Replay) -> None:
    """UserError for the first thing that would keep a replay from running, by the field of the request."""
    check_size(sum(len(part.combinations) for part in parts(request, replay)), replay.recording.n_rows)


def parts(request: ReplayRequest, replay: Replay) -> Iterator[Part]:
    """The runs of a request, for one X after the other. UserError."""
    for x in dict.fromkeys(request.delay_thresholds) or (None,):
        options = RunOptions(faults=replay.faults, delay_threshold=x, engine="native", seed=request.seed)
        try:
            session = replay_session(replay.spec, replay.recording, replay.bucket_us, options)
        except UserError as error:
            raise blaming_fields(error) from None
        modes, policies = request.modes or [str(session.plan.mode)], request.policies or [str(session.plan.policy)]
        yield part_of(session, modes, policies)


def run(request: ReplayRequest, replay: Replay, scratch: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Run a replay: what a comparison gives. scratch: a folder for files that go again."""
    total = sum(len(part.combinations) for part in parts(request, replay))
    done = run_parts(parts(request, replay), total, scratch, on_progress)
    done["notes"] = [*replay.recording.notes, *done["notes"]]
    return {"query": replay.spec["name"], "faults": list(replay.faults), **done}


def saved(folder: Path, request: Mapping[str, Any]) -> Replay:
    """The replay of a job: what the route has put into its request and its folder."""
    return Replay(request["spec"], request["bucket_us"], request["faults"], read_recording(folder / RECORDING))
