"""The settings of a source, in addition to those of every service."""

from __future__ import annotations

from ipaddress import ip_address

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from boreal.model.durations import Bytes
from services.kafka.settings import ClientChoice


class SourceOptions(BaseSettings):
    """Read from the environment, as BOREAL_ and the name in capitals."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", extra="ignore", frozen=True)

    http_host: str = Field(
        default="127.0.0.1",
        description="The loopback address that a source listens on for rows over HTTP. Other machines post to the API.",
    )
    http_port: int | None = Field(
        default=None,
        description="The port where rows may be posted to `/QUERY/STREAM/tuples`. Without it, rows come from Kafka alone.",
    )
    http_token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="What a caller at BOREAL_HTTP_PORT must send, as `Authorization: Bearer TOKEN`. Without it a source takes "
        "no rows there.",
    )
    spool_bytes: Bytes = Field(
        default=1_000_000_000,
        validate_default=False,
        description="The most that a source keeps on disk of posted rows while Kafka does not take them.",
    )
    topic_reader: ClientChoice = Field(
        default="auto",
        description="Which client a source reads the user's topic with: `librdkafka`, `kafka-python`, or `auto`: librdkafka "
        "where confluent-kafka is installed (`pip install 'boreal[librdkafka]'`) and the site is reached without a proxy.",
    )

    @field_validator("http_host")
    @classmethod
    def _is_loopback(cls, host: str) -> str:
        """A source has neither TLS nor roles."""
        try:
            is_loopback = host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            is_loopback = False
        if not is_loopback:
            raise ValueError("is not a loopback address; write 127.0.0.1, and let other machines post to the API")
        return host
