"""The settings of a source, in addition to those of every service."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from boreal.model.durations import Bytes


class SourceOptions(BaseSettings):
    """Read from the environment, as BOREAL_ and the name in capitals."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", extra="ignore", frozen=True)

    http_host: str = Field(default="127.0.0.1", description="The address that a source listens on for rows over HTTP.")
    http_port: int | None = Field(
        default=None,
        description="The port where rows may be posted to `/QUERY/STREAM/tuples`. Without it, rows come from Kafka alone.",
    )
    spool_bytes: Bytes = Field(
        default=1_000_000_000,
        validate_default=False,
        description="The most that a source keeps on disk of posted rows while Kafka does not take them.",
    )
