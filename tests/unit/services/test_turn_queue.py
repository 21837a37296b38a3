"""Who shares a thread has turns in the order in which they are due; those with rows go before those that are patient."""

from __future__ import annotations

import random

from services.hosting.turn_queue import LATE_US, NEVER, TurnQueue

NOW = 10 * LATE_US


def queue(hurried: dict[str, int], patient: dict[str, int]) -> TurnQueue[str]:
    made = TurnQueue[str]()
    for members, is_patient in ((hurried, False), (patient, True)):
        for member, due in members.items():
            made.set_due(member, due, is_patient)
    return made


def all_turns(made: TurnQueue[str], now: int) -> list[str]:
    """Who has a turn now; each member has one."""
    taken = []
    while (member := made.take(now)) is not None:
        taken.append(member)
    return taken


def test_turns_come_in_the_order_in_which_they_are_due_and_none_before() -> None:
    made = queue({"b": 2, "a": 1, "c": 5}, {})
    assert (all_turns(made, 2), made.first_due()) == (["a", "b"], 5)
    made.set_due("a", 4, is_patient=False)
    assert all_turns(made, 5) == ["a", "c"]
    assert made.first_due() == NEVER


def test_one_with_rows_goes_before_those_that_are_patient() -> None:
    made = queue({"busy": NOW}, {f"calm{number}": NOW - LATE_US + number for number in range(3)})
    assert all_turns(made, NOW) == ["busy", "calm0", "calm1", "calm2"]


def test_those_that_are_patient_do_not_wait_for_ever() -> None:
    made = queue({"busy": NOW, "other": NOW}, {"calm": NOW - LATE_US - 1, "late": NOW - LATE_US - 1})
    assert all_turns(made, NOW) == ["busy", "calm", "other", "late"]


def test_a_patient_member_that_gets_rows_goes_first_from_then_on() -> None:
    made = queue({}, {"one": NOW - 2, "other": NOW - 1})
    made.set_due("other", NOW, is_patient=False)
    assert all_turns(made, NOW) == ["other", "one"]
    assert all(member in made for member in ("one", "other"))


def test_one_that_is_removed_has_no_turn() -> None:
    made = queue({"gone": 1}, {"away": 1, "here": 1})
    made.remove("gone")
    made.remove("away")
    made.remove("never")
    assert (all_turns(made, 1), "gone" in made) == (["here"], False)


def test_turns_are_late_when_one_of_either_kind_should_have_been_long_ago() -> None:
    assert not queue({"a": NOW - LATE_US}, {"b": NOW}).is_late(NOW)
    assert queue({"a": NOW - LATE_US - 1}, {}).is_late(NOW)
    assert queue({}, {"b": NOW - LATE_US - 1}).is_late(NOW)


def test_whatever_happens_each_member_has_the_turn_that_it_was_given_last() -> None:
    chance = random.Random(7)
    made, owed = TurnQueue[int](), dict[int, int]()
    for now in range(2_000):
        member = chance.randrange(20)
        if chance.random() < 0.2:
            made.remove(member)
            owed.pop(member, None)
        else:
            owed[member] = now + chance.randrange(30)
            made.set_due(member, owed[member], chance.random() < 0.5)
        assert made.first_due() == min(owed.values(), default=NEVER)
        if chance.random() < 0.5:
            continue
        if (taken := made.take(now)) is None:
            assert min(owed.values(), default=NEVER) > now
        else:
            assert owed.pop(taken) <= now
            made.remove(taken)
