"""What the monitor lets go of, and what it holds back (R26, R27)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from deployment.claims import DEAF_AFTER_US, REPEAT_US, ClaimLoss, ClaimReturn, LogClaims, Trim
from reconcile.events import InstanceId

SECOND = 1_000_000
RETENTION = 60 * SECOND
R0, R1, OUT = InstanceId("main", "r0", 0), InstanceId("main", "r1", 0), InstanceId("egress", "r0", 0)
READERS = {"jfk/0": [R0, R1], "out/0": [OUT]}


def begun(at: int = 0) -> LogClaims:
    claims = LogClaims(at)
    claims.expect(READERS, RETENTION, at)
    return claims


def test_what_nobody_needs_may_go():
    claims = begun()
    claims.acknowledge(R0, [("jfk/0", 10)], 0)
    claims.acknowledge(R1, [("jfk/0", 7)], 0)
    claims.acknowledge(OUT, [("out/0", 3)], 0)
    assert claims.tick(SECOND) == [Trim({"jfk/0": 7, "out/0": 3})]
    assert claims.tick(2 * SECOND) == []
    claims.acknowledge(R0, [("jfk/0", 20)], 0)
    assert claims.tick(3 * SECOND) == []
    claims.acknowledge(R1, [("jfk/0", 15)], 0)
    assert claims.tick(4 * SECOND) == [Trim({"jfk/0": 15})]


def test_a_reader_of_which_nothing_is_known_holds_all_back_until_retention_has_passed():
    claims = begun()
    for at in range(0, RETENTION + SECOND, SECOND):
        claims.acknowledge(R0, [("jfk/0", at)], at)
        claims.hear(OUT, at)
        assert claims.tick(at) == []
    at = RETENTION + SECOND
    claims.acknowledge(R0, [("jfk/0", 99)], at)
    assert claims.tick(at) == [ClaimLoss(R1, at), Trim({"jfk/0": 99})]


def test_a_lost_claim_is_regained_by_being_heard_but_what_went_is_gone():
    claims = begun()
    claims.acknowledge(R1, [("jfk/0", 5)], 0)
    for at in range(0, RETENTION + 2 * SECOND, SECOND):
        claims.acknowledge(R0, [("jfk/0", 50)], at)
        claims.hear(OUT, at)
        claims.tick(at)
    assert claims.lost == [R1]
    assert claims.needed == {"jfk/0": 50}
    assert claims.acknowledge(R1, [("jfk/0", 5)], at) == [ClaimReturn(R1)]
    assert claims.lost == []
    claims.acknowledge(R0, [("jfk/0", 60)], at)
    assert claims.tick(at + SECOND) == []
    claims.acknowledge(R1, [("jfk/0", 55)], at)
    assert claims.tick(at + 2 * SECOND) == [Trim({"jfk/0": 55})]


def test_any_sign_of_life_keeps_a_claim_without_an_acknowledgement():
    """An instance whose state cannot be rebuilt from windows acknowledges nothing before its first checkpoint."""
    claims = begun()
    for at in range(0, 3 * RETENTION, SECOND):
        claims.acknowledge(R0, [("jfk/0", 9)], at)
        claims.hear(R1, at)
        claims.hear(OUT, at)
        assert claims.tick(at) == []


def test_where_nobody_has_a_claim_nothing_goes():
    claims = begun()
    claims.acknowledge(R0, [("jfk/0", 9)], 0)
    claims.acknowledge(R1, [("jfk/0", 8)], 0)
    claims.tick(0)
    effects = [effect for at in range(0, 2 * RETENTION, SECOND) for effect in claims.tick(at) if not isinstance(effect, Trim)]
    assert [effect.reader for effect in effects] == [OUT, R0, R1]
    assert claims.needed == {"jfk/0": 8}


def test_a_reader_that_asks_for_more_than_before_gets_what_is_left():
    """It began anew from an older place than it had acknowledged."""
    claims = begun()
    claims.acknowledge(R0, [("jfk/0", 10)], 0)
    claims.acknowledge(R1, [("jfk/0", 4)], 0)
    claims.tick(0)
    claims.acknowledge(R0, [("jfk/0", 6)], 0)
    claims.acknowledge(R1, [("jfk/0", 20)], 0)
    assert claims.tick(SECOND) == [Trim({"jfk/0": 6})]


def test_a_monitor_that_was_frozen_takes_nobody_for_silent():
    claims = begun()
    for who, key in ((R0, "jfk/0"), (R1, "jfk/0"), (OUT, "out/0")):
        claims.acknowledge(who, [(key, 5)], 0)
    claims.tick(0)
    assert claims.tick(10 * RETENTION) == [Trim({"jfk/0": 5, "out/0": 5})]  # said again
    assert claims.tick(10 * RETENTION + DEAF_AFTER_US) == []
    assert claims.lost == []


def test_nobody_has_to_speak_while_the_query_is_paused():
    claims = begun()
    for at in range(0, 3 * RETENTION, SECOND):
        assert claims.tick(at, is_counting=False) == []
    assert claims.tick(at + SECOND) == []
    assert claims.lost == []


def test_trims_are_said_again():
    claims = begun()
    for who in (R0, R1):
        claims.acknowledge(who, [("jfk/0", 5)], 0)
    said = [at for at in range(0, 2 * REPEAT_US, SECOND) if claims.tick(at)]
    assert said == [0, REPEAT_US]


def test_what_is_said_again_spares_a_reader_that_regained_its_claim():
    """An owner that was away may still have what others were told to trim."""
    claims = begun()
    for at in range(0, RETENTION + 2 * SECOND, SECOND):
        claims.acknowledge(R0, [("jfk/0", 50)], at)
        claims.hear(OUT, at)
        claims.tick(at)
    assert claims.needed == {"jfk/0": 50}
    claims.acknowledge(R1, [("jfk/0", 5)], at)
    assert [effect for late in range(1, 31) for effect in claims.tick(at + late * SECOND)] == [Trim({"jfk/0": 5})]


def test_readers_that_come_and_go_with_the_shape_of_the_query():
    claims = begun()
    claims.acknowledge(R0, [("jfk/0", 10)], 0)
    claims.acknowledge(R1, [("jfk/0", 7)], 0)
    claims.expect({"jfk/0": [R0]}, RETENTION, SECOND)
    assert claims.tick(SECOND) == [Trim({"jfk/0": 10})]
    assert claims.acknowledge(R1, [("jfk/0", 7)], SECOND) == []
    claims.expect(READERS, RETENTION, 2 * SECOND)
    claims.acknowledge(R0, [("jfk/0", 30)], 2 * SECOND)
    assert claims.tick(3 * SECOND) == []


events = st.one_of(
    st.tuples(st.just("acknowledge"), st.sampled_from([R0, R1]), st.integers(0, 30)),
    st.tuples(st.just("hear"), st.sampled_from([R0, R1, OUT]), st.just(0)),
    st.tuples(st.just("tick"), st.just(R0), st.integers(1, 4)),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(events, min_size=20, max_size=60))
def test_nothing_goes_that_a_reader_with_a_claim_may_need(script):
    """I7, against a plain account of who said what when."""
    claims = LogClaims(0)
    retention = 5 * SECOND
    claims.expect(READERS, retention, 0)
    now = 0
    said = {R0: (0, 0), R1: (0, 0)}
    for kind, who, number in script:
        if kind == "acknowledge":
            claims.acknowledge(who, [("jfk/0", number)], now)
            said[who] = (now, number)
        elif kind == "hear":
            claims.hear(who, now)
            if who in said:
                said[who] = (now, said[who][1])
        else:
            now += number * SECOND
            for effect in claims.tick(now):
                if isinstance(effect, Trim) and "jfk/0" in effect.needed:
                    valid = [needs for heard_at, needs in said.values() if now - heard_at <= retention]
                    assert effect.needed["jfk/0"] <= min(valid)
