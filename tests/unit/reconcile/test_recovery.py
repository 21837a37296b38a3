"""Where a new life begins: anchor or checkpoint, whichever leaves less to read again (R25, R26)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from boreal.model.frames import Anchor
from reconcile.events import InstanceId
from reconcile.instance import Instance
from reconcile.recovery import Beginning, Restart, VerifiedCheckpoint, plan_restart
from sunion.tape import BEGINNING
from tests.harness import plan_of, query_of

ANCHOR = Anchor(time=100, needs=40, next_ids=(("out/0", 9),), inputs=(("a/0", 3),))


def saved(time: int, needs: int | None = None) -> VerifiedCheckpoint:
    return VerifiedCheckpoint(
        time, time if needs is None else needs, (("out/0", 7),), (("a/0", 5),), b"state", ("main.r0.0", 1)
    )


def test_with_nothing_it_begins_at_the_beginning() -> None:
    assert plan_restart(2, 4, {"out/0": 0}, None, None) == [Restart(2, 4, BEGINNING, BEGINNING, {}, {"out/0": 0})]


def test_an_anchor_says_from_where_the_state_is_rebuilt_and_until_when_output_is_thrown_away() -> None:
    [place] = plan_restart(2, 4, {"out/0": 9}, ANCHOR, None)
    assert (place.position, place.muted_until) == (40, 100)
    assert (place.made, place.inputs, place.state) == ({"out/0": 9}, {"a/0": 3}, None)
    assert (place.incarnation, place.epoch, place.written) == (2, 4, {"out/0": 9})


def test_a_checkpoint_newer_than_the_anchors_inputs_comes_first() -> None:
    first, second = plan_restart(2, 4, {"out/0": 9}, ANCHOR, saved(90))
    assert (first.position, first.muted_until, first.state) == (90, 90, b"state")
    assert first.made == {"out/0": 7} and first.written == {"out/0": 9}, "what it makes again is dropped by id"
    assert second.state is None and second.position == 40, "and the anchor is there should it be damaged"
    assert (first.opened, first.anchored_to) == ({"a/0": 3}, 100), "what came before is read again only where it has to be"
    assert (second.opened, second.anchored_to) == ({}, BEGINNING)


def test_without_an_anchor_the_beginning_is_there_should_the_checkpoint_be_damaged() -> None:
    first, second = plan_restart(2, 4, {"out/0": 9}, None, saved(90))
    assert (first.state, first.opened) == (b"state", {"a/0": 0})
    assert second == Restart(2, 4, BEGINNING, BEGINNING, {}, {"out/0": 9})


@pytest.mark.parametrize("older", [saved(30), saved(90, needs=30)])
def test_a_checkpoint_that_has_more_read_again_comes_second(older: VerifiedCheckpoint) -> None:
    first, second = plan_restart(2, 4, {}, ANCHOR, older)
    assert first.state is None and second.state == b"state"


def test_a_later_lifes_first_checkpoint_counts_as_newer_than_any_of_an_earlier_life() -> None:
    plan = plan_of(query_of())
    first, second = (Instance(plan, InstanceId("main", "r0", 0), Restart(life)).claims for life in (1, 2))
    first.checkpoints = 100 * 365 * 86_400  # one a second for a hundred years
    assert second.next_checkpoint() > first.next_checkpoint()


def test_inputs_that_do_not_begin_at_id_0_are_read_from_where_they_begin():
    first = {"a/0": 70, "b/0": 3}
    begins = Beginning(first)
    [place] = plan_restart(1, -1, {}, None, None, begins)
    assert (place.position, place.inputs) == (BEGINNING, first)
    saved_place, beginning = plan_restart(2, 0, {}, None, saved(90), begins)
    assert saved_place.opened == {key: first.get(key, 0) for key in saved_place.inputs} and beginning.inputs == first
    assert plan_restart(2, 0, {}, ANCHOR, None, begins)[0].inputs == dict(ANCHOR.inputs)


def test_an_instance_with_the_state_of_another_one_begins_with_that_and_never_without_a_state():
    carried = replace(saved(60), next_ids=())
    [place] = plan_restart(1, -1, {}, None, None, Beginning({"a/0": 5}, True, carried))
    assert (place.position, place.muted_until, place.made, place.state) == (60, 60, {}, b"state")
    assert (place.inputs, place.checkpoint) == ({"a/0": 5}, ("main.r0.0", 1))
    better, again = plan_restart(2, 0, {"out/0": 3}, None, saved(90), Beginning({"a/0": 5}, True, carried))
    assert (better.position, again.position, again.written) == (90, 60, {"out/0": 3})
    assert [each.position for each in plan_restart(2, 0, {}, None, saved(90), Beginning({"a/0": 5}, True))] == [90]
    assert plan_restart(2, 0, {}, None, None, Beginning({"a/0": 5}, True)) == []
