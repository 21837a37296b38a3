"""What the services are told from outside: by BOREAL_ variables, over a file that BOREAL_CONFIG names, over defaults.

    BOREAL_SITES__A__BOOTSTRAP=127.0.0.1:9092   a site: one Kafka cluster, and the processes beside it
    BOREAL_REDIS__URL=redis://127.0.0.1:6379/0
    BOREAL_DATA=/var/lib/boreal                 where a source spools what Kafka cannot take
    BOREAL_SPARK__MASTER=spark://host:7077      where the operators of `engine: spark` run

Secrets are SecretStr: they show as stars wherever settings are printed.
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
    """How one site's Kafka is reached. ca_file: PEM certificates to trust, where the system's do not do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None

    @field_validator("bootstrap")
    @classmethod
    def _refuse_no_address(cls, bootstrap: str) -> str:
        """Clients take it for a cluster that is out of reach, or raise what is no outage."""
        for address in bootstrap.split(","):
            host, colon, port = address.strip().rpartition(":")
            if not (host and port.isdecimal() if colon else port):
                raise PydanticCustomError("address", "is not HOST:PORT, or several with commas between")
        return bootstrap


class RedisSettings(BaseModel):
    """Where checkpoints are kept. A rediss:// URL asks for TLS. UserError where the password in the URL is not escaped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    password: SecretStr | None = None
    ca_file: Path | None = None

    @property
    def address(self) -> str:
        """The URL to be shown: without the user and the password that it may hold."""
        scheme, separator, rest = self.url.partition("://")
        return scheme + separator + rest.rpartition("@")[2].partition("?")[0]

    @field_validator("url")
    @classmethod
    def _refuse_unescaped(cls, url: str) -> str:
        """Where a password holds what ends the host's part of a URL, its rest would be taken for a path, and be shown."""
        try:
            parts = urlsplit(url)
        except ValueError:  # whose message may quote the password
            is_split = False
        else:
            is_split = "@" not in parts.path + parts.query + parts.fragment
        if is_split:
            return url
        problem = "cannot be split into its password and its host, and is not shown here"
        fix = "write %23 for #, %2F for /, %3F for ? and %40 for @ in the password, or give it as BOREAL_REDIS__PASSWORD"
        raise UserError("BOREAL_REDIS__URL", None, problem, fix)


class SparkSettings(BaseModel):
    """Where and how Spark runs operators. checkpoints: a directory for the places of its jobs, beside other data if it is not
    named. conf: Spark's own settings, above ours. A master on this machine is one core for each job, whatever it says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = "local[1]"
    checkpoints: Path | None = None
    conf: dict[str, str] = {}


class ServiceSettings(BaseSettings):
    """Everything, validated. sites: by name, at least one; proxies: a SOCKS5 URL by site, through which this process
    reaches it."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", env_nested_delimiter="__", extra="ignore", frozen=True)

    sites: dict[str, KafkaSettings]
    redis: RedisSettings = RedisSettings()
    data: Path = Path("data")
    proxies: dict[str, str] = {}
    spark: SparkSettings = SparkSettings()

    @property
    def home(self) -> str:
        """The site of the users' topics, of what sources log, and of the queries themselves."""
        return min(self.sites)

    @property
    def site_names(self) -> tuple[str, ...]:
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
    """UserError where the file is absent, which pydantic would pass over, or no YAML mapping."""
    try:
        with open(path, "rb"):
            return YamlConfigSettingsSource(settings_cls, yaml_file=path)
    except (OSError, ValueError, YAMLError) as error:
        raise UserError("BOREAL_CONFIG", path, f"cannot be read: {error}", "name a YAML file of settings") from None


def load_settings(**given: Any) -> ServiceSettings:
    """The settings in force; `given` stands above all else. UserError names the first that is wrong by its variable."""
    try:
        settings = ServiceSettings(**given)
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
