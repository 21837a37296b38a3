"""The settings of the services: BOREAL_ variables take precedence over the file named by BOREAL_CONFIG, and that over defaults.

    BOREAL_SITES__A__BOOTSTRAP=127.0.0.1:9092   a site: one Kafka cluster, and the processes near it
    BOREAL_REDIS__URL=redis://127.0.0.1:6379/0
    BOREAL_DATA=/var/lib/boreal                 where a source spools records while Kafka is unreachable
    BOREAL_SPARK__MASTER=spark://host:7077      where the operators with `engine: spark` run

Secrets are SecretStr: they are printed as stars.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from boreal.model.errors import UserError


class KafkaSettings(BaseModel):
    """How to reach one site's Kafka."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str
    """HOST:PORT, or several with commas between."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's security protocol."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """How to authenticate, if the protocol is a SASL one."""
    username: str | None = None
    """User name for SASL."""
    password: SecretStr | None = None
    """Password for SASL."""
    ca_file: Path | None = None
    """PEM file of trusted certificates, if the system's are not sufficient."""

    @field_validator("bootstrap")
    @classmethod
    def _refuse_no_address(cls, bootstrap: str) -> str:
        """Clients would treat a malformed address as an unreachable cluster, or raise an unrelated error."""
        for address in bootstrap.split(","):
            host, colon, port = address.strip().rpartition(":")
            if not (host and port.isdecimal() if colon else port):
                raise PydanticCustomError("address", "is not HOST:PORT, or several with commas between")
        return bootstrap


class RedisSettings(BaseModel):
    """How to reach the Redis that stores checkpoints. UserError if the password in the URL is not escaped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    """URL of the server; rediss:// for TLS."""
    password: SecretStr | None = None
    """Password, if it is not in the URL."""
    ca_file: Path | None = None
    """PEM file of trusted certificates, if the system's are not sufficient."""

    @property
    def address(self) -> str:
        """The URL for display, without user and password."""
        scheme, separator, rest = self.url.partition("://")
        return scheme + separator + rest.rpartition("@")[2].partition("?")[0]

    @field_validator("url")
    @classmethod
    def _refuse_unescaped(cls, url: str) -> str:
        """A password with a character that ends the host part of a URL would be split, and its rest displayed as a path."""
        try:
            parts = urlsplit(url)
        except ValueError:  # its message may contain the password
            is_split = False
        else:
            is_split = "@" not in parts.path + parts.query + parts.fragment
        if is_split:
            return url
        problem = "cannot be split into its password and its host, and is not shown here"
        fix = "write %23 for #, %2F for /, %3F for ? and %40 for @ in the password, or give it as BOREAL_REDIS__PASSWORD"
        raise UserError("BOREAL_REDIS__URL", None, problem, fix)


class SparkSettings(BaseModel):
    """Where and how Spark runs operators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = "local[1]"
    """URL of Spark's master. A local master always gets one core per job."""
    checkpoints: Path | None = None
    """Directory for the positions of Spark's jobs; None: inside the data directory."""
    conf: dict[str, str] = {}
    """Spark's own settings; they override ours."""


class ServiceSettings(BaseSettings):
    """All settings of the services, validated."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", env_nested_delimiter="__", extra="ignore", frozen=True)

    sites: dict[str, KafkaSettings]
    """Kafka clusters by the name of their site; at least one."""
    redis: RedisSettings = RedisSettings()
    """The checkpoint store."""
    data: Path = Path("data")
    """Directory for local data, such as the spools of sources."""
    proxies: dict[str, str] = {}
    """SOCKS5 URL by site, for sites that this process reaches through a proxy."""
    spark: SparkSettings = SparkSettings()
    """Spark, for operators with `engine: spark`."""

    @property
    def home(self) -> str:
        """The home site, with the query records: the first by name."""
        return min(self.sites)

    @property
    def site_names(self) -> tuple[str, ...]:
        """All sites, sorted by name."""
        return tuple(sorted(self.sites))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = os.environ.get("BOREAL_CONFIG")
        return (init_settings, env_settings, *((_file(settings_cls, path),) if path else ()))


def _file(settings_cls: type[BaseSettings], path: str) -> YamlConfigSettingsSource:
    """The settings in a YAML file. UserError if it is absent (pydantic would ignore that) or not a YAML mapping."""
    try:
        with open(path, "rb"):
            return YamlConfigSettingsSource(settings_cls, yaml_file=path)
    except (OSError, ValueError, YAMLError) as error:
        raise UserError("BOREAL_CONFIG", path, f"cannot be read: {error}", "name a YAML file of settings") from None


def load_settings(**overrides: Any) -> ServiceSettings:
    """The effective settings; `overrides` take precedence. UserError names the variable of the first invalid setting."""
    try:
        settings = ServiceSettings(**overrides)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = "BOREAL_" + "__".join(str(part).upper() for part in first["loc"])
        fix = "set BOREAL_SITES__A__BOOTSTRAP=HOST:PORT" if first["loc"] == ("sites",) else "correct it"
        raise UserError(field, None, first["msg"], fix) from None
    except SettingsError as error:
        raise UserError("BOREAL_", None, str(error), "write JSON there, or BOREAL_SITES__A__BOOTSTRAP=HOST:PORT") from None
    if not settings.sites:
        raise UserError("BOREAL_SITES", "{}", "names no site", "set BOREAL_SITES__A__BOOTSTRAP=HOST:PORT")
    return settings
