"""What a worker runs, as records come, and while none come."""

from __future__ import annotations

from deployment.hosted_roles import (
    AGAIN_AFTER_US,
    BeginRole,
    EndRole,
    HostedRoles,
    HostEffect,
    HostTick,
    PlacementRead,
    PlacementRefused,
    RoleOver,
)
from deployment.placement_record import Assignment, PlacementRecord, RoleReport


def assigned(start: int, incarnation: str = "me") -> Assignment:
    return Assignment("w", incarnation, start, 1, "c")


def read(hosted: HostedRoles, number: int, **roles: Assignment) -> list[HostEffect]:
    return hosted.handle(PlacementRead(PlacementRecord("a", number, "1", roles)), 0)


def hosting(**roles: Assignment) -> HostedRoles:
    hosted = HostedRoles("me")
    read(hosted, 1, **roles)
    return hosted


def test_it_runs_what_the_record_gives_its_own_process_and_nothing_else() -> None:
    hosted = HostedRoles("me")
    assert read(hosted, 1, p=assigned(1), q=assigned(1, "another of my name")) == [BeginRole("p", assigned(1))]
    assert read(hosted, 2, p=assigned(1), r=assigned(2)) == [BeginRole("r", assigned(2))]
    assert read(hosted, 3, r=assigned(2)) == [EndRole("p")]
    assert hosted.report().keys() == {"p", "r"}, "it has not ended yet"
    assert hosted.handle(RoleOver("p", 0), 0) == []
    assert hosted.report() == {"r": RoleReport(2)} and hosted.number == 3


def test_a_role_with_a_new_start_ends_first_and_is_reported_as_that_start() -> None:
    hosted = hosting(p=assigned(1))
    assert read(hosted, 2, p=assigned(2)) == [EndRole("p")]
    assert read(hosted, 3, p=assigned(3)) == []
    assert hosted.report() == {"p": RoleReport(3)}
    assert hosted.handle(RoleOver("p", 0), 0) == [BeginRole("p", assigned(3))]


def test_a_role_that_ends_by_itself_is_reported_until_a_record_says_more() -> None:
    hosted = hosting(p=assigned(1), q=assigned(1))
    assert hosted.handle(RoleOver("p", 3), 0) == []
    assert hosted.report() == {"p": RoleReport(1, code=3), "q": RoleReport(1)} and hosted.running == ["q"]
    assert read(hosted, 2, q=assigned(1)) == []
    assert hosted.report().keys() == {"q"}
    assert read(hosted, 3, q=assigned(1), p=assigned(3)) == [BeginRole("p", assigned(3))]


def test_without_a_record_for_long_it_starts_such_a_role_itself() -> None:
    hosted = hosting(p=assigned(1))
    hosted.handle(RoleOver("p", 3), 5)
    assert hosted.handle(HostTick(), AGAIN_AFTER_US + 4) == []
    assert hosted.handle(HostTick(), AGAIN_AFTER_US + 5) == [BeginRole("p", assigned(1))]
    assert hosted.report() == {"p": RoleReport(1)}
    assert hosted.handle(HostTick(), 9 * AGAIN_AFTER_US) == []


def test_an_older_record_and_a_repeated_one_change_nothing() -> None:
    hosted = hosting(p=assigned(1))
    read(hosted, 7, p=assigned(1))
    assert read(hosted, 7) == [] and hosted.problem is None
    assert read(hosted, 6) == []
    assert hosted.problem == "record 6 is older than record 7, which is obeyed"
    assert hosted.running == ["p"] and hosted.number == 7
    read(hosted, 8, p=assigned(1))
    assert hosted.problem is None


def test_a_record_that_cannot_be_read_changes_nothing_and_is_a_problem_until_the_next() -> None:
    hosted = hosting(p=assigned(1))
    assert hosted.handle(PlacementRefused("is damaged"), 0) == []
    assert hosted.problem == "a record is damaged; record 1 is obeyed" and hosted.running == ["p"]
    read(hosted, 2, p=assigned(1))
    assert hosted.problem is None


def test_a_refusal_is_its_own() -> None:
    hosted = HostedRoles("me")
    hosted.handle(PlacementRead(PlacementRecord("a", 1, "1", {}, {"me": "why", "other": "not me"})), 0)
    assert hosted.refused == "why"
    read(hosted, 2)
    assert hosted.refused is None
