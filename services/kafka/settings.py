"""The settings of the services: from BOREAL_ variables, over a file that BOREAL_CONFIG names, over defaults.

docs/settings.md lists all of them. Secrets are SecretStr: they show as stars wherever settings are printed.
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

VARIABLES = {
    "BOREAL_CONFIG": "A YAML file of settings, such as `sites: {a: {bootstrap: '127.0.0.1:9092'}}`. Variables override it.",
    "BOREAL_LOG_LEVEL": "How much processes log: DEBUG, INFO (the default), WARNING or ERROR.",
    "BOREAL_LOG_FORMAT": "How processes log: `text` (the default), or `json`, an object a line (docs/operations.md).",
    "BOREAL_TRACES": "Where spans of OpenTelemetry go, such as `http://127.0.0.1:4318/v1/traces`. Without it, none are made.",
    "BOREAL_CACHE": "The directory of the jars of Kafka and of Spark's connector, by default `~/.cache/boreal`.",
    "BOREAL_FAILPOINT": "For tests: the name of a failpoint at which the process is killed (services/hosting/failpoints.py).",
}
"""Variables that are read before, or without, the settings."""


class KafkaSettings(BaseModel):
    """How one site's Kafka is reached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(description="The brokers of the site, as `HOST:PORT`, several with commas between.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="How connections are encrypted and authenticated."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="PLAIN", description="How user and password are presented, with SASL."
    )
    username: str | None = Field(default=None, description="The user, with SASL.")
    password: SecretStr | None = Field(default=None, description="The password, with SASL.")
    ca_file: Path | None = Field(
        default=None, description="A file of PEM certificates to trust, where the system's do not suffice."
    )

    @field_validator("bootstrap")
    @classmethod
    def _refuse_no_address(cls, bootstrap: str) -> str:
        """Clients would treat a malformed address as an unreachable cluster, or raise an unrelated error."""
        for address in bootstrap.split(","):
            host, colon, port = address.strip().rpartition(":")
            if not (host and port.isdecimal() if colon else port):
                raise PydanticCustomError("address", "is not HOST:PORT, or several with commas between")
        return bootstrap


class RegistrySettings(BaseModel):
    """How a schema registry is reached. UserError where the password in the URL is not escaped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        repr=False,
        description="The address of a schema registry that speaks as Confluent's does, such as `http://127.0.0.1:8081`.",
    )
    username: str | None = Field(default=None, description="The user, with basic authentication.")
    password: SecretStr | None = Field(default=None, description="The password, with basic authentication.")
    ca_file: Path | None = Field(
        default=None, description="A file of PEM certificates to trust, where the system's do not suffice."
    )

    @field_validator("url")
    @classmethod
    def _refuse_other_urls(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PydanticCustomError("url", "is not http://HOST:PORT or https://HOST:PORT")
        if parts.username or parts.password:
            raise PydanticCustomError("url", "holds a user: give it as USERNAME and PASSWORD beside the URL")
        return url.rstrip("/")


class RedisSettings(BaseModel):
    """Where checkpoints are kept. UserError where the password in the URL is not escaped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        default="redis://127.0.0.1:6379/0",
        repr=False,
        description="The address of Redis. A URL with `rediss://` asks for TLS.",
    )
    password: SecretStr | None = Field(default=None, description="The password, instead of one in the URL.")
    ca_file: Path | None = Field(
        default=None, description="A file of PEM certificates to trust, where the system's do not suffice."
    )

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

    master: str = Field(
        default="local[1]",
        description="The Spark master that jobs run on. One on this machine gives each application one core, whatever it says.",
    )
    checkpoints: Path | None = Field(
        default=None,
        description="The directory where jobs keep their place, by default `spark` in the data directory. It may be deleted.",
    )
    conf: dict[str, str] = Field(
        default={}, description="Settings of Spark itself, as a JSON object. They override those that boreal makes."
    )

    @property
    def is_local(self) -> bool:
        """Whether jobs run on this machine, each in a JVM of its driver."""
        return is_local(self.master)


def is_local(master: str) -> bool:
    """Whether a Spark master is the driver's own JVM."""
    return master == "local" or master.startswith("local[")


ClientChoice = Literal["auto", "kafka-python", "librdkafka"]
"""A client of Kafka. auto: librdkafka where it is installed and can reach the site."""


class ServiceSettings(BaseSettings):
    """Everything, validated."""

    model_config = SettingsConfigDict(env_prefix="BOREAL_", env_nested_delimiter="__", extra="ignore", frozen=True)

    sites: dict[str, KafkaSettings] = Field(
        description="The Kafka clusters, by the name of the site; at least one. The first by name is the home site."
    )
    redis: RedisSettings = Field(default=RedisSettings(), description="Where checkpoints are kept.")
    registries: dict[str, RegistrySettings] = Field(
        default={},
        description="The schema registries, by name, of streams whose `format` has them. A stream that names none has the "
        "first by name.",
    )
    data: Path = Field(
        default=Path("data"),
        description="The directory of what outlives a process on this machine: logs, spools, the places of Spark jobs. For "
        "commands, the local stack's directory, by default `~/.local/share/boreal`.",
    )
    proxies: dict[str, str] = Field(
        default={}, description="A SOCKS5 URL for each site that this process reaches through a proxy."
    )
    stream_proxies: dict[str, str] = Field(
        default={},
        description="A SOCKS5 URL for each stream of this process's query whose log it reads through a proxy of its own, as a "
        "JSON object.",
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="Where and how Spark runs operators.")
    row_producer: ClientChoice = Field(
        default="auto",
        description="Which client writes what clients read, such as `q.out` and `q.stable`: `librdkafka`, `kafka-python`, or "
        "`auto`: librdkafka where confluent-kafka is installed (`pip install 'boreal[librdkafka]'`) and the site is reached "
        "without a proxy.",
    )

    @property
    def home(self) -> str:
        """The home site, with the query records: the first by name."""
        return min(self.sites)

    def registry_of(self, field: str, named: str | None) -> tuple[str, RegistrySettings]:
        """A registry that a query needs, and its name. field: of the query, where it is named. named: there, if it is.
        UserError if there is none."""
        if named is None and self.registries:
            named = min(self.registries)
        if named is None or named not in self.registries:
            problem = "is not known to this installation" if named else "is needed by the format, and none is known"
            fix = f"set BOREAL_REGISTRIES__{(named or 'main').upper()}__URL=http://HOST:PORT for every process"
            raise UserError(field, named, problem, fix)
        return named, self.registries[named]

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
