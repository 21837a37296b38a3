"""alpha*X: the part of X that the path to the client leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from boreal.model.frames import State
from boreal.query.plan import Plan
from reconcile.events import PathAfter, Send, Threshold
from reconcile.instance import Instance
from reconcile.links import Link
from simulation.mutants.registry import Patch, caught_by, mutant


def _tell(patch: Patch, micros: Callable[[Instance, PathAfter], int]) -> None:
    """Send producers another value, `micros(instance, message)`, as the time of the path from them to a client."""

    def make(original: Any) -> Any:
        def beat(self: Instance, now: int, effects: list[Any]) -> None:
            beaten: list[Any] = []
            original(self, now, beaten)
            for effect in beaten:
                if isinstance(effect, Send) and isinstance(effect.message, PathAfter):
                    effect = replace(effect, message=replace(effect.message, micros=micros(self, effect.message)))
                effects.append(effect)

        return beat

    patch(Instance, "_beat", make)


@caught_by("reconcile/test_instance.py", "test_what_it_tells_upstream_counts_all_that_comes_after_it")
def tell_only_the_next_hop(patch: Patch) -> None:
    """Producers get only the time of their next hop, and not of the path after it: alpha*X is too long (R9)."""

    def next_hop(instance: Instance, message: PathAfter) -> int:
        [link] = (link for link in instance.links if link.port.key == message.key)
        return link.hop.value * 3 // 2

    _tell(patch, next_hop)


@caught_by("reconcile/test_instance.py", "test_what_it_tells_upstream_counts_what_its_clock_is_behind")
def keep_to_oneself_what_the_clock_is_behind(patch: Patch) -> None:
    """Producers are not told how far their reader's clock is behind: rows are overdue there before the producers emit what
    they hold back (R9)."""
    _tell(patch, lambda instance, message: message.micros - instance.skew_us)


@caught_by("reconcile/test_instance.py", "test_what_several_producers_hold_back_may_come_so_far_apart")
def expect_all_producers_at_once(patch: Patch) -> None:
    """A bucket of several shards is overdue when the first of them has arrived, although others may count from later rows
    (R9)."""
    patch(Plan, "spread_us", lambda _: lambda self, fragment: 0)


@caught_by("reconcile/test_instance.py", "test_rows_do_not_gather_where_a_bucket_comes_from_several_instances")
def gather_rows_where_a_bucket_comes_from_several(patch: Patch) -> None:
    """Rows gather in loaded sources also where several instances give a bucket, which then learn of its end so much later
    than of its first row (R9)."""
    patch(Plan, "may_gather", lambda _: property(lambda self: True))


@caught_by("reconcile/test_instance.py", "test_it_is_silent_while_its_sources_gather_rows_and_says_so")
def give_signs_of_life_while_the_sources_gather(patch: Patch) -> None:
    """An instance is heard as often as ever while its sources gather rows: where there is no time, each reader gets records
    that say nothing (R24)."""
    patch(Instance, "_rest_us", lambda _: property(lambda self: 0))


@caught_by("reconcile/test_instance.py", "test_a_source_that_gathers_is_silent_only_after_what_it_has_said")
def find_silence_out_by_chance(patch: Patch) -> None:
    """That an input is silent is found out when the instance has something else to do (R10)."""
    patch(Instance, "_silences", lambda _: lambda self: iter(()))


@caught_by("reconcile/test_instance.py", "test_what_it_tells_upstream_counts_all_that_comes_after_it")
def count_the_shortest_path_after(patch: Patch) -> None:
    """If several paths lead to a client, the shortest one counts in alpha*X (R9)."""

    def make(_: Any) -> Any:
        return lambda self: min((micros for micros, _ in self.path_after.values()), default=0)

    patch(Instance, "_path_after", make)


@caught_by("reconcile/test_instance.py", "test_what_it_tells_upstream_counts_all_that_comes_after_it")
def forget_the_path_after(patch: Patch) -> None:
    """alpha*X leaves no time for the path to the client (R9)."""
    patch(Instance, "_path_after", lambda _: lambda self: 0)


@caught_by("reconcile/test_instance.py", "test_alpha_x_is_frozen_on_leaving_stable")
def move_alpha_x_in_a_failure(patch: Patch) -> None:
    """alpha*X also follows measurements during a failure, which the failure itself distorts (R9)."""

    def make(original: Any) -> Any:
        return lambda self, at_once=False: original(self, True)

    patch(Instance, "_set_alpha", make)


@caught_by("reconcile/test_instance.py", "test_what_it_tells_upstream_counts_all_that_comes_after_it")
def keep_no_reserve(patch: Patch) -> None:
    """alpha*X is X less the path to the client, without a reserve (R9)."""

    def make(original: Any) -> Any:
        def set_alpha(self: Instance, at_once: bool = False) -> None:
            original(self, at_once)
            if self.plan.alpha_x_us is None and (at_once or self.state is State.STABLE):
                self.sunion.alpha_x_us = self.delay_threshold_us - self.engine.latency_us - self._path_after()

        return set_alpha

    patch(Instance, "_set_alpha", make)


@caught_by("reconcile/test_instance.py", "test_alpha_x_is_what_x_leaves_and_a_new_x_holds_at_once_for_what_is_held_back")
def keep_the_old_x_in_a_failure(patch: Patch) -> None:
    """A new X has no effect before the instance is STABLE again (R9)."""

    def make(original: Any) -> Any:
        return lambda self, at_once=False: original(self, at_once and self.sunion.alpha_x_us == 0)

    patch(Instance, "_set_alpha", make)


@mutant
def give_a_fixed_alpha_to_all(patch: Patch) -> None:
    """A fixed alpha*X applies to every SUnion on the path, and leaves the later ones no time for another shard (R9)."""

    def make(original: Any) -> Any:
        def set_alpha(self: Instance, at_once: bool = False) -> None:
            self.reads_sources_only = True
            original(self, at_once)

        return set_alpha

    patch(Instance, "_set_alpha", make)


@caught_by("reconcile/test_instance.py", "test_in_calm_it_tells_upstream_what_is_new_and_reminds_of_the_rest")
def say_each_latency_once(patch: Patch) -> None:
    """A latency of the path that has not changed is never repeated: a producer that has missed the message never knows it
    (R9)."""
    patch(Link, "to_tell", lambda original: lambda self, micros, is_reminder: original(self, micros, False))


@caught_by("reconcile/test_instance.py", "test_the_intervals_that_follow_from_x_change_with_it_at_once")
def keep_the_former_intervals(patch: Patch) -> None:
    """A new X holds, but not the boundary interval, the heartbeat and the silence timeout that follow from it."""

    def make(original: Any) -> Any:
        def set_threshold(self: Instance, wanted: Threshold) -> None:
            original(self, replace(Threshold.of(self.plan), delay_threshold_us=wanted.delay_threshold_us))

        return set_threshold

    patch(Instance, "_set_threshold", make)
