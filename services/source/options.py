"""The settings of a source, in addition to those of every service."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from boreal.model.durations import Bytes


class SourceOptions(BaseSettings):
    """Read from the environment, as BOREAL_ and the name in capitals."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", extra="ignore", frozen=True)

    http_host: str = "127.0.0.1"
    """The address to listen on."""
    http_port: int | None = None
    """The port for posts to /QUERY/STREAM/tuples; None: rows cannot be posted."""
    spool_bytes: Bytes = Field(default=1_000_000_000, validate_default=False)
    """The largest size of the spool on disk, in bytes; the variable is text such as "1GB"."""
