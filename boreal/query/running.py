"""How a query runs: its mode and policy, its tuning, and the fragments that it is split into."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

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

LEAST_WINDOW_US, MOST_WINDOW_US = 6 * 3_600_000_000, 30 * 86_400_000_000
"""Of an objective."""

_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?)%")


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
    """What to do with new input, during a failure and during the stabilization after it. `process` handles it at once, `delay`
    holds it back as long as X allows, `suspend` holds it back until the failure or the stabilization is over. In a file also
    on one line, as in `process/delay`."""

    failure: Hold = Field(default=Hold.PROCESS, description="While some input is missing.")
    stabilization: Hold = Field(default=Hold.PROCESS, description="While tentative results are being corrected.")

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
    """What most queries leave at its default. `bucket` is event time, the other durations are run time."""

    bucket: Duration = Field(
        default=100_000,
        description="The span of event time that is ordered, processed and rolled back as one.",
    )
    boundary_interval: Duration = Field(
        default=50_000,
        description="How often a source says how far its stream has come. A reader that hears nothing for three intervals "
        "takes an input for failed.",
    )
    heartbeat: Duration = Field(
        default=100_000,
        description="How often replicas tell each other how they are. One that misses three counts as dead. At most the delay "
        "threshold.",
    )
    alpha_x: AlphaX = Field(
        default=None,
        description="How long an instance may hold a bucket back for input that is missing: the share of X that the rest of "
        "the path does not need. `auto` lets it be measured (R9).",
    )
    memory: Bytes = Field(
        default=256_000_000,
        description="The input that an instance keeps in memory; beyond it, input is read from its log again.",
    )
    retention: Duration = Field(
        default=86_400_000_000,
        description="A reader that is silent for longer loses its claim on the logs, which are then trimmed without it (R27). "
        "At least ten heartbeats, and a second.",
    )
    history: DurationOrZero = Field(
        default=0,
        description="Logs keep at least what was written within this time, for `boreal backfill` and `boreal verify`.",
    )
    stable_lag_max: Duration | None = Field(
        default=None,
        description="During a failure that goes on, how far stable results may fall behind what stable input allows, before "
        "what has healed is corrected in part (R16). By default ten times the delay threshold.",
    )
    checkpoint_interval: Duration | None = Field(
        default=None,
        description="How often a checkpoint is written in the background (R26). By default only where no window bounds the "
        "state.",
    )

    @property
    def completion(self) -> int:
        """How long after its first row a bucket may be known to be complete: it passes, and then a boundary comes."""
        return self.bucket + self.boundary_interval

    @property
    def delay_threshold_least(self) -> int:
        """The smallest delay threshold that leaves room for a bucket to fill, be closed, and be given up (R8, R13)."""
        return 2 * self.completion + LEAST_SLACK_US

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


def _percent(value: object) -> object:
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    percent = float(found[1]) if found else 0.0
    if not 0 < percent < 100:
        refuse("is not a share in percent, above 0% and below 100%", 'write it as in "99.9%"', value=value)
    return percent


Percent = Annotated[
    float,
    BeforeValidator(_percent),
    PlainSerializer(lambda value: f"{value:.10g}%"),
    WithJsonSchema({"type": "string", "title": "percentage", "pattern": f"^{_PERCENT.pattern}$", "examples": ["99.9%"]}),
]


class Slo(Model):
    """X as a service level objective: which share of new rows is to come within X, and for which share of the time clients are
    to hold nothing tentative. In a file also on one line, as in `99.9%/30d`."""

    objective: Percent = Field(description="The share of both, such as `99.9%`; below 100%, so that there is a budget.")
    window: Duration = Field(
        default=MOST_WINDOW_US,
        description="Over how long, up to now. From six hours to 30 days, which is how long events are kept.",
    )

    @model_validator(mode="after")
    def _check(self) -> Slo:
        if not LEAST_WINDOW_US <= self.window <= MOST_WINDOW_US:
            refuse(
                "is not between 6h and 30d: burn rates are taken over six hours, and events are kept for 30 days",
                "write a window within these, such as 7d",
                field="window",
                value=format_duration(self.window),
            )
        return self


def slo_from_text(value: object) -> object:
    """OBJECTIVE or OBJECTIVE/WINDOW as the fields that it stands for; anything else unchanged."""
    if not isinstance(value, str):
        return value
    objective, slash, window = value.partition("/")
    return {"objective": objective, **({"window": window} if slash else {})}


class FragmentSpec(Model):
    """A part of the query that one set of replicas runs. What is absent is as in the query."""

    operators: SomeNames = Field(
        description="The operators of the fragment. Every operator that reaches the output is in one fragment.",
    )
    replicas: Replicas | None = Field(default=None, description="The number of replicas of this fragment.")
    shards: Shards | None = Field(default=None, description="The number of shards of this fragment.")
    engine: Engines | None = Field(
        default=None,
        description="The engine of this fragment, or a list with one for each of its replicas.",
    )
