"""The builder gives the very query that the file gives, and refuses what the file's rules refuse."""

from __future__ import annotations

from datetime import timedelta

import pytest

from boreal.model.errors import UserError
from boreal.query.builder import QueryBuilder, Session, Sliding, Tumbling
from boreal.query.planner import plan
from boreal.query.spec import Mode, Policy, load_query

DEPARTURES = """
name: departures
streams:
  ewr:
    topic: flights.ewr
    time: departed_at
    schema: &flight {carrier: string, origin: string, tailnum: string, dep_delay: double}
    key: [carrier]
    boundary: data
    disorder: 0s
  jfk: {time: departed_at, schema: *flight}
  lga: {time: departed_at, schema: *flight, boundary: clock, disorder: 5s}
  weather: {time: at, time_unit: s, schema: {origin: string, wind: double}, boundary: producer}
operators:
  all:        {union: [ewr, jfk, lga]}
  late:       {filter: all, where: "dep_delay > 15"}
  shaped:     {map: late, select: {carrier: carrier, hours: "dep_delay / 60.0"}}
  by_carrier:
    aggregate: late
    window: {tumbling: 10m}
    by: [carrier]
    compute: {flights: count(*), mean_delay: avg(dep_delay)}
  sliding:    {aggregate: late, window: {sliding: 1h, every: 10m}, by: [carrier], compute: {n: count(*)}}
  joined:     {join: [late, weather], on: [origin], within: 30m, how: left}
  uniq:       {distinct: late, on: [tailnum], window: {tumbling: 1h}}
  ever:       {distinct: late, on: [tailnum]}
  again:      {deduplicate: late, on: [tailnum], within: 90m}
  visits:     {aggregate: late, window: {session: 30m, longest: 1d}, by: [tailnum], compute: {n: count(*)}}
  windy:      {lookup: [late, weather], on: [origin], within: 1d, how: left}
  calm:       {lookup: [late, weather], on: [origin]}
  worst:      {top: late, k: 5, order_by: "dep_delay desc", window: {tumbling: 1h}, by: []}
output: by_carrier
delay_threshold: 3s
reconcile: overlay_redo
policy: {failure: process, stabilization: delay}
replicas: 2
shards: 1
engine: native
fragments:
  merge: {operators: [all, late], replicas: 3}
  count: {operators: [by_carrier], engine: spark, shards: 2}
tuning: {bucket: 100ms, alpha_x: 2s, memory: 256MB}
"""


def test_every_kind_of_operator_as_in_the_file() -> None:
    flight = {"carrier": "string", "origin": "string", "tailnum": "string", "dep_delay": "double"}
    builder = QueryBuilder("departures")
    ewr = builder.stream("ewr", topic="flights.ewr", time="departed_at", schema=flight, key=["carrier"])
    jfk = builder.stream("jfk", time="departed_at", schema=flight)
    lga = builder.stream("lga", time="departed_at", schema=flight, boundary="clock", disorder="5s")
    weather = builder.stream(
        "weather", time="at", time_unit="s", schema={"origin": "string", "wind": "double"}, boundary="producer"
    )
    merged = builder.union("all", ewr, jfk, lga)
    late = builder.filter("late", merged, "dep_delay > 15")
    builder.map("shaped", late, {"carrier": "carrier", "hours": "dep_delay / 60.0"})
    by_carrier = builder.aggregate(
        "by_carrier",
        late,
        window=Tumbling("10m"),
        by=["carrier"],
        compute={"flights": "count(*)", "mean_delay": "avg(dep_delay)"},
    )
    builder.aggregate("sliding", late, window=Sliding("1h", "10m"), by=["carrier"], compute={"n": "count(*)"})
    builder.join("joined", late, weather, on=["origin"], within=timedelta(minutes=30), how="left")
    builder.distinct("uniq", late, on=["tailnum"], window=Tumbling(timedelta(hours=1)))
    builder.distinct("ever", late, on=["tailnum"])
    builder.deduplicate("again", late, on=["tailnum"], within="90m")
    builder.aggregate("visits", late, window=Session("30m", "1d"), by=["tailnum"], compute={"n": "count(*)"})
    builder.lookup("windy", late, weather, on=["origin"], within="1d", how="left")
    builder.lookup("calm", late, weather, on=["origin"])
    builder.top("worst", late, k=5, order_by="dep_delay desc", window=Tumbling("1h"))
    builder.fragment("merge", merged, late, replicas=3)
    builder.fragment("count", by_carrier, engine="spark", shards=2)
    query = builder.build(
        by_carrier,
        delay_threshold=timedelta(seconds=3),
        reconcile=Mode.OVERLAY_REDO,
        policy=Policy.parse("process/delay", "policy"),
        replicas=2,
        engine="native",
        tuning={"bucket": "100ms", "alpha_x": "2s", "memory": "256MB"},
    )

    assert query == load_query(DEPARTURES)
    assert query.dump() == load_query(DEPARTURES).dump()
    assert plan(query) == plan(load_query(DEPARTURES))


def test_the_builders_defaults_are_the_files() -> None:
    builder = QueryBuilder("small")
    ewr = builder.stream("ewr", time="at", schema={"carrier": "string"})

    text = "name: small\nstreams: {ewr: {time: at, schema: {carrier: string}}}\noutput: ewr\n"
    assert builder.build(ewr) == load_query(text)


def test_a_name_used_twice_is_refused_at_once() -> None:
    builder = QueryBuilder("small")
    ewr = builder.stream("ewr", time="at", schema={"carrier": "string"})
    builder.filter("late", ewr, "true")

    with pytest.raises(UserError) as caught:
        builder.filter("late", ewr, "false")
    assert caught.value.field == "operators.late"
    assert "another name" in caught.value.fix


def test_refusals_are_the_files() -> None:
    builder = QueryBuilder("small")
    ewr = builder.stream("ewr", time="at", schema={"carrier": "strin"})

    with pytest.raises(UserError) as caught:
        builder.build(ewr)
    assert caught.value.field == "streams.ewr.schema.carrier"
    assert "did you mean string?" in caught.value.fix
