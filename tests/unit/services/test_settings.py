"""Settings from outside: what is shown of them, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from boreal.model.errors import UserError
from services.kafka.settings import RedisSettings, load_settings


@pytest.mark.parametrize("url", ["rediss://me:hush@cache:6380/1", "rediss://:hush@cache:6380/1?password=hush"])
def test_a_password_in_the_url_of_redis_is_not_shown(url: str) -> None:
    settings = RedisSettings(url=url)
    assert settings.address == "rediss://cache:6380/1" and settings.url == url
    assert "hush" not in f"{settings!r} {settings}"


def test_an_address_without_a_password_is_shown_as_it_is() -> None:
    assert RedisSettings().address == "redis://127.0.0.1:6379/0"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is set."""
    monkeypatch.delenv("BOREAL_SITES", raising=False)
    monkeypatch.delenv("BOREAL_CONFIG", raising=False)
    return monkeypatch


@pytest.mark.parametrize("text", [None, "sites: [", "- a list", "a text"])
def test_a_file_of_settings_that_cannot_be_read_is_named(bare: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "boreal.yaml"
    if text is not None:
        path.write_text(text)
    bare.setenv("BOREAL_CONFIG", str(path))
    with pytest.raises(UserError) as refused:
        load_settings()
    assert (refused.value.field, refused.value.value) == ("BOREAL_CONFIG", str(path))


def test_a_variable_that_is_no_json_is_named(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("BOREAL_SITES", "{a")
    with pytest.raises(UserError, match="sites"):
        load_settings()


@pytest.mark.parametrize("address", ["", "kafka:none", "kafka:", ":9092", "one:9092,", "one:9092,two:x"])
def test_an_address_of_kafka_that_is_none_is_named(bare: pytest.MonkeyPatch, address: str) -> None:
    bare.setenv("BOREAL_SITES__A__BOOTSTRAP", address)
    with pytest.raises(UserError, match="is not HOST:PORT") as refused:
        load_settings()
    assert refused.value.field == "BOREAL_SITES__A__BOOTSTRAP"


@pytest.mark.parametrize("address", ["kafka", "kafka:9092", "one:9092, two:9093", "[::1]:9092"])
def test_addresses_of_kafka_are_taken_as_clients_take_them(bare: pytest.MonkeyPatch, address: str) -> None:
    bare.setenv("BOREAL_SITES__A__BOOTSTRAP", address)
    assert load_settings().sites["a"].bootstrap == address


def test_a_file_is_under_the_environment(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "boreal.yaml"
    path.write_text("sites: {a: {bootstrap: 'one:9092'}, b: {bootstrap: 'two:9092'}}")
    bare.setenv("BOREAL_CONFIG", str(path))
    bare.setenv("BOREAL_SITES__A__BOOTSTRAP", "other:9092")
    sites = load_settings().sites
    assert {name: site.bootstrap for name, site in sites.items()} == {"a": "other:9092", "b": "two:9092"}


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hu#sh@cache:6380/1",
        "redis://:hu/sh@cache:6380/1",
        "redis://me:hu?sh@cache:6380/1",
        "redis://me:h@u#sh@cache:6380/1",
        "redis://me:hu[sh@cache:6380/1",
    ],
)
def test_a_password_that_ends_the_host_of_its_url_is_refused_and_not_shown(bare: pytest.MonkeyPatch, url: str) -> None:
    bare.setenv("BOREAL_SITES__A__BOOTSTRAP", "one:9092")
    bare.setenv("BOREAL_REDIS__URL", url)
    with pytest.raises(UserError) as refused:
        load_settings()
    assert refused.value.field == "BOREAL_REDIS__URL"
    assert "%23 for #" in refused.value.fix and "BOREAL_REDIS__PASSWORD" in refused.value.fix
    assert "hu" not in str(refused.value) and "sh@" not in str(refused.value)


def test_an_escaped_password_is_taken_and_not_shown() -> None:
    assert RedisSettings(url="redis://:hu%23%2Fsh@cache:6380/1").address == "redis://cache:6380/1"
