"""How a query runs: its mode and policy, its tuning, and the fragments that it is split into."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, model_validator

from boreal.model.durations import Bytes, Duration, DurationOrZero, format_bytes, format_duration, parse_duration
from boreal.model.errors import UserError
from boreal.query.fields import Engines, Model, Replicas, Shards, SomeNames
from boreal.query.refusals import refuse

DEFAULT_FRAGMENT = "main"
"""The one fragment of a query that names none."""

LEAST_SLACK_US = 1_000
"""What the delay threshold must leave beyond two buckets and two boundary intervals."""

RETENTION_HEARTBEATS = 10
"""A reader counts as dead after three heartbeats, and is to keep its claim on the logs well beyond (R27)."""

LEAST_RETENTION_US = 1_000_000
LEAST_MEMORY = 1_000


class Mode(StrEnum):
    """How a replica gets back to the state before the failure, to reprocess from there."""

    CHECKPOINT_REDO = "checkpoint_redo"
    UNDO_REDO = "undo_redo"
    OVERLAY_REDO = "overlay_redo"


class Hold(StrEnum):
    """What to do with new input while some input is missing or being corrected (R11)."""

    SUSPEND = "suspend"
    DELAY = "delay"
    PROCESS = "process"


class Policy(Model):
    """What to do with new input, during a failure and during the stabilization after it."""

    failure: Hold = Hold.PROCESS
    stabilization: Hold = Hold.PROCESS

    @staticmethod
    def parse(text: str, field: str) -> Policy:
        """The policy written on one line, FAILURE/STABILIZATION, as in "process/delay"."""
        parts = text.split("/")
        known = {hold.value for hold in Hold}
        if len(parts) != 2 or not known.issuperset(parts):
            choices = ", ".join(Hold)
            raise UserError(field, text, "is not a policy", f"write FAILURE/STABILIZATION, each one of: {choices}")
        return Policy(failure=Hold(parts[0]), stabilization=Hold(parts[1]))

    def __str__(self) -> str:
        return f"{self.failure}/{self.stabilization}"


def policy_from_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Policy.parse(value, "")
    except UserError as error:
        refuse(error.problem, error.fix, value=value)


def _alpha_x(value: object) -> object:
    if value is None or value == "auto":
        return None
    try:
        return parse_duration(value, "")
    except UserError as error:
        refuse(error.problem, f"{error.fix}; or write auto", value=value)


AlphaX = Annotated[
    int | None,
    BeforeValidator(_alpha_x),
    PlainSerializer(lambda value: "auto" if value is None else format_duration(value)),
    WithJsonSchema({"type": "string", "title": "auto, or a duration", "examples": ["auto", "2s"]}),
]


class Tuning(Model):
    """What most queries leave alone. `bucket` and `boundary_interval` are event time, the rest is run time.

    alpha_x: how long a SUnion may hold a bucket back; None (`auto`) lets it be measured (R9). stable_lag_max: by
    default ten times the delay threshold (R16). checkpoint_interval: of periodic checkpoints in the background (R26).
    history: what was logged since so long ago stays in the logs, needed or not, for `boreal backfill` and `boreal verify`.
    """

    bucket: Duration = 100_000
    boundary_interval: Duration = 50_000
    heartbeat: Duration = 100_000
    alpha_x: AlphaX = None
    memory: Bytes = 256_000_000
    retention: Duration = 86_400_000_000
    history: DurationOrZero = 0
    stable_lag_max: Duration | None = None
    checkpoint_interval: Duration | None = None

    @property
    def delay_threshold_least(self) -> int:
        """The smallest delay threshold that leaves room for a bucket to fill, be closed, and be given up (R8, R13)."""
        return 2 * (self.bucket + self.boundary_interval) + LEAST_SLACK_US

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        retention = max(RETENTION_HEARTBEATS * self.heartbeat, LEAST_RETENTION_US)
        if self.retention < retention:
            refuse(
                f"is too short: readers that live would lose their claim on the logs between two of their heartbeats, "
                f"every {format_duration(self.heartbeat)}",
                f"write at least {format_duration(retention)}",
                field="retention",
                value=format_duration(self.retention),
            )
        if self.checkpoint_interval is not None and self.checkpoint_interval < self.boundary_interval:
            refuse(
                f"is shorter than boundary_interval, {format_duration(self.boundary_interval)}: nothing new comes sooner",
                f"write at least {format_duration(self.boundary_interval)}",
                field="checkpoint_interval",
                value=format_duration(self.checkpoint_interval),
            )
        if self.memory < LEAST_MEMORY:
            refuse(
                "is too small for any rows",
                f"write at least {format_bytes(LEAST_MEMORY)}; 256MB, the default, serves most queries",
                field="memory",
                value=format_bytes(self.memory),
            )
        return self


class FragmentSpec(Model):
    """A part of the query that one replica set runs; what is absent is as in the query."""

    operators: SomeNames
    replicas: Replicas | None = None
    shards: Shards | None = None
    engine: Engines | None = None
