"""What a source is told from outside beyond what every service is."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from boreal.model.durations import Bytes


class SourceOptions(BaseSettings):
    """BOREAL_HTTP_PORT: where rows may be posted, to /QUERY/STREAM/tuples; without it, nowhere. BOREAL_SPOOL_BYTES: how
    much of what was posted a source keeps on disk at most, such as "1GB"."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", extra="ignore", frozen=True)

    http_host: str = "127.0.0.1"
    http_port: int | None = None
    spool_bytes: Bytes = Field(default=1_000_000_000, validate_default=False)
