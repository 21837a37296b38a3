"""The takeover by a query's next version: where the rows of an egress are cut, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from boreal.model.frames import Data
from logs import egress_switch
from logs.egress_switch import ClientFrame, EgressSwitch
from simulation.mutants.registry import Patch, caught_by

_FILE = "logs/test_switch_rules.py"
_HELD = "test_what_reaches_the_time_is_held_back_until_all_have_promised"


@caught_by(_FILE, _HELD)
def give_the_row_at_the_takeover(patch: Patch) -> None:
    """A row exactly at the time of a takeover is given by the version before."""

    def make(original: Any) -> Any:
        return lambda frame, time: original(frame, time + 1 if isinstance(frame, Data) else time)

    patch(egress_switch, "cut_at", make)


@caught_by(_FILE, "test_a_time_that_rows_have_reached_is_missed")
def promise_a_time_that_has_passed(patch: Patch) -> None:
    """An egress promises a time that its rows have passed."""

    def make(original: Any) -> Any:
        def prepare(self: EgressSwitch, following: Any) -> list[ClientFrame]:
            reached, self.reached = self.reached, -(1 << 62)
            given: list[ClientFrame] = original(self, following)
            self.reached = max(self.reached, reached)
            return given

        return prepare

    patch(EgressSwitch, "prepare", make)


@caught_by(_FILE, _HELD)
def end_before_all_have_promised(patch: Patch) -> None:
    """An egress ends its version at a time that the others have not promised."""

    def make(original: Any) -> Any:
        def prepare(self: EgressSwitch, following: Any) -> Any:
            return original(self, None if following is None else replace(following, agreed=True))

        return prepare

    patch(EgressSwitch, "prepare", make)


@caught_by(_FILE, "test_what_was_held_back_is_given_when_another_time_is_named")
def lose_what_was_held_back(patch: Patch) -> None:
    """When another time is named, what was held back for the first is lost."""

    def make(original: Any) -> Any:
        def prepare(self: EgressSwitch, following: Any) -> Any:
            before = self._next
            if following is None or before is None or following.at != before.at:
                self._held.clear()
            return original(self, following)

        return prepare

    patch(EgressSwitch, "prepare", make)


@caught_by(_FILE, _HELD)
def count_the_rows_that_were_held_back(patch: Patch) -> None:
    """The ids of the next version begin after those that the version before held back, and not after what clients have."""

    def make(original: Any) -> Any:
        def end(self: EgressSwitch, log: Any, frame: Any, following: Any) -> ClientFrame:
            self.next_id += frame.batch.num_rows if isinstance(frame, Data) else 0
            given: ClientFrame = original(self, log, frame, following)
            return given

        return end

    patch(EgressSwitch, "_end", make)
