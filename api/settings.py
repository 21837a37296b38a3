"""The settings of the API, in addition to those of every service."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from boreal.model.errors import UserError


class ApiSettings(BaseSettings):
    """Read from the environment, as BOREAL_API__ and the name in capitals."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_API__", extra="ignore", frozen=True)

    host: str = Field(default="127.0.0.1", description="The address that the API listens on.")
    port: int = Field(default=8080, ge=1, le=65535, description="The port that the API listens on.")
    hosts: list[str] = Field(
        default=[],
        description="Names by which callers reach the API, as a JSON list, beside `localhost` and loopback addresses. Requests "
        "with another Host are refused.",
    )
    token: SecretStr | None = Field(
        default=None, description="A token with the roles admin and chaos, beside those of `boreal token`."
    )
    certificate: Path | None = Field(default=None, description="A PEM file with the certificate, to serve HTTPS.")
    key: Path | None = Field(default=None, description="A PEM file with the key of the certificate.")
    behind_tls: bool = Field(
        default=False, description="Whether what is in front of the API speaks TLS, so that it may listen anywhere without."
    )
    show_rows: bool = Field(
        default=True,
        description="Whether answers have rows of outputs. If not, what they say of health, delays and counts is the same.",
    )
    requests_per_s: float = Field(
        default=1_000, ge=0, description="Requests a second that a token may make; more are answered with 429. 0: any number."
    )
    open_requests: int = Field(
        default=1_000, ge=1, description="Requests that a token may have open at the same time, streams of events included."
    )
    allow_chaos: bool = Field(default=False, description="Whether callers with the role chaos may break something on purpose.")

    jobs_at_once: int = Field(default=1, ge=1, le=16, description="Jobs, such as comparisons, that may run at the same time.")

    def check(self) -> None:
        """UserError for an address that other machines reach, without TLS: tokens could be read on their way."""
        if self.certificate is not None or self.behind_tls or is_loopback(self.host):
            return
        problem = "is not a loopback address, and tokens would cross the network unencrypted"
        fix = "set BOREAL_API__CERTIFICATE and BOREAL_API__KEY, or BOREAL_API__BEHIND_TLS=true where a proxy speaks TLS"
        raise UserError("BOREAL_API__HOST", self.host, problem, fix)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
