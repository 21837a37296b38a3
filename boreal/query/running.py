"""How a query runs: its mode and policy, its tuning, and the fragments that it is split into."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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

SHORTEST_AUTO_US, LONGEST_AUTO_US = 10_000, 100_000
"""Of the intervals that follow from X. A hop through Kafka takes about as long as the shortest. The longest bounds what clients
see whatever X is: a bucket is a part of every delay, and who dies is found out after three boundaries or heartbeats."""

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


def _auto_duration(value: object) -> object:
    if value is None or value == "auto":
        return None
    try:
        return parse_duration(value, "")
    except UserError as error:
        refuse(error.problem, f"{error.fix}; or write auto", value=value)


AutoDuration = Annotated[
    int | None,
    BeforeValidator(_auto_duration),
    PlainSerializer(lambda value: "auto" if value is None else format_duration(value)),
    WithJsonSchema({"type": "string", "title": "auto, or a duration", "examples": ["auto", "2s"]}),
]
"""None where it is left to the program: `auto`."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often a query does what it does again and again, in microseconds of run time: as it says, or as follows from X."""

    bucket: int
    """The span that is ordered, processed and rolled back as one."""
    boundary_interval: int
    """How often a source says how far its stream has come."""
    heartbeat: int
    """How often replicas tell each other how they are."""

    @property
    def completion(self) -> int:
        """How long after its first row a bucket may be known to be complete: it passes, and then a boundary comes."""
        return self.bucket + self.boundary_interval


def _whole(interval: int) -> int:
    """In whole milliseconds, within the bounds of what follows from X."""
    return min(max(interval - interval % 1_000, SHORTEST_AUTO_US), LONGEST_AUTO_US)


def least_that_suffices(needed: Callable[[int], int]) -> int:
    """The smallest delay threshold that is not below what itself makes necessary. needed: the threshold that the intervals
    which follow from a threshold need; it must grow by less than the threshold does."""
    least = 0
    while (more := needed(least)) > least:
        least = more
    return least


class Tuning(Model):
    """What most queries leave at its default. `bucket` is event time, the other durations are run time."""

    bucket: AutoDuration = Field(
        default=None,
        description="The span of event time that is ordered, processed and rolled back as one. `auto` is a twentieth of the "
        "delay threshold, from 10ms to 100ms, by the threshold with which the query is created; it stays what it is then.",
    )
    boundary_interval: AutoDuration = Field(
        default=None,
        description="How often a source says how far its stream has come. A reader that hears nothing for three intervals "
        "takes an input for failed. `auto` is a tenth of the delay threshold, from 10ms to 100ms, and follows it.",
    )
    heartbeat: AutoDuration = Field(
        default=None,
        description="How often replicas tell each other how they are. One that misses three counts as dead. At most the delay "
        "threshold. `auto` is a tenth of the delay threshold, from 10ms to 100ms, and follows it.",
    )
    alpha_x: AutoDuration = Field(
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
        default=600_000_000,
        description="On a stack, logs keep at least what was written within this time, for replays of failures, `boreal "
        "backfill` and `boreal verify`.",
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

    def intervals(self, delay_threshold: int) -> Intervals:
        """What holds with this X, in microseconds."""
        twentieth, tenth = _whole(delay_threshold // 20), _whole(delay_threshold // 10)
        return Intervals(self.bucket or twentieth, self.boundary_interval or tenth, self.heartbeat or tenth)

    @property
    def delay_threshold_least(self) -> int:
        """The smallest delay threshold that leaves room for a bucket to fill, be closed, and be given up (R8, R13)."""
        return least_that_suffices(lambda threshold: 2 * self.intervals(threshold).completion + LEAST_SLACK_US)

    @model_validator(mode="after")
    def _check(self) -> Tuning:
        heartbeat = self.heartbeat or LONGEST_AUTO_US
        retention = max(RETENTION_HEARTBEATS * heartbeat, LEAST_RETENTION_US)
        if self.retention < retention:
            refuse(
                f"is too short: readers that live would lose their claim on the logs between two of their heartbeats, "
                f"every {format_duration(heartbeat)}",
                f"write at least {format_duration(retention)}",
                field="retention",
                value=format_duration(self.retention),
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


class Application(StrEnum):
    """Which Spark application runs the operators of a replica, where queries share applications."""

    SHARED = "shared"
    OWN = "own"


class SparkPart(Model):
    """How operators run in Spark."""

    application: Application = Field(
        default=Application.SHARED,
        description="Where queries share Spark applications, as on a stack with workers: whether this one shares them too, or "
        "has one of its own for each replica: a JVM, and a core that no other query takes from it.",
    )


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
