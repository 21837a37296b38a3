"""A seed's run as text, for reading: `python -m simulation.trace SEED [MUTANT]` prints the scenario, then every line of
time, instance, event and effects, and what the checkers found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from boreal.model.frames import INFINITY, Boundary, Data, Frame, Undo
from embedded.world import Process
from reconcile.events import (
    Acknowledge,
    Append,
    Effect,
    Event,
    Frames,
    ReadDone,
    Received,
    Send,
    StateChanged,
    StoreCheckpoint,
    Tail,
    Tick,
)
from simulation.families import make_scenario
from simulation.feed import EPOCH_US
from simulation.invariants import check, check_operators
from simulation.mutants import mutated
from simulation.oracle import Oracle
from simulation.run import Simulation, observe
from simulation.scenario import Scenario, reference_of


def trace(seed: int, mutant: str | None = None) -> Iterator[str]:
    """The lines of a seed's trace."""
    scenario = make_scenario(seed)
    yield from _describe(scenario)
    lines: list[str] = []
    reference = observe(reference_of(scenario))
    with mutated(mutant):
        observed = observe(scenario, spy=lambda simulation: _listen(simulation, lines.append))
    yield from lines
    if observed.error is not None:
        yield f"raised {observed.error}"
    found = check(scenario, observed, reference)
    found += check_operators(Oracle(scenario.plan, scenario.feeds), reference)
    for violation in found:
        yield f"{violation.invariant} {violation}"


def _describe(scenario: Scenario) -> Iterator[str]:
    """What the scenario is made of."""
    plan = scenario.plan
    yield f"seed {scenario.seed}, family {scenario.family}, {plan.mode}, {plan.policy}, step_rows {scenario.step_rows}"
    yield (
        f"X {plan.delay_threshold_us} alpha*X {plan.alpha_x_us} bucket {plan.bucket_us} interval {plan.boundary_interval_us}"
        f" heartbeat {plan.heartbeat_us} memory {plan.memory_bytes} lag {plan.stable_lag_of(plan.delay_threshold_us)}"
        f" checkpoint {plan.checkpoint_interval_us} start {_event_time(scenario.start_us)}"
    )
    for fragment in plan.fragments:
        inputs = {entry.name: [edge.name for edge in entry.edges] for entry in fragment.inputs}
        yield f"{fragment.name}: {fragment.replicas} shards {fragment.shards} inputs {inputs}"
        for node in fragment.nodes:
            yield f"    {node.name}: {node.spec}"
    for name, feed in scenario.feeds.items():
        yield f"{name}: {feed.batch.num_rows} rows, ends at {feed.intervals * plan.boundary_interval_us}"
    for strike in scenario.strikes:
        who = f" {strike.who}" if strike.who else ""
        yield f"{strike.kind} {strike.place}/{strike.other}{who} {strike.at_us}..{strike.end_us} {strike.amount}"
    if scenario.skews:
        yield "skews " + ", ".join(f"{who}: {skew}" for who, skew in scenario.skews.items())
    if scenario.walls:
        yield "walls " + ", ".join(f"{who}: {walls}" for who, walls in scenario.walls.items())


def _event_time(time: int) -> str:
    """Event time in milliseconds from the epoch that all feeds begin near."""
    if abs(time) >= INFINITY:
        return "+inf" if time > 0 else "-inf"
    return f"{(time - EPOCH_US) / 1000:.1f}"


def _show_frame(frame: Frame) -> str:
    origin = f"{frame.origin.replica}#{frame.origin.incarnation} e{frame.epoch}"
    match frame:
        case Data():
            kind = "tentative" if frame.tentative else "stable"
            times = frame.batch.column(0).to_pylist()
            last = frame.first_id + len(times) - 1
            return f"{kind} {frame.first_id}..{last} times {_event_time(times[0])}..{_event_time(times[-1])} ({origin})"
        case Boundary():
            kind = "tentative " if frame.tentative else ""
            anchor = f" anchor {frame.anchor.next_ids}" if frame.anchor else ""
            return f"{kind}boundary {_event_time(frame.time)} {frame.state.value}{anchor} ({origin})"
        case Undo(last_id=last_id):
            return f"Undo {last_id} ({origin})"
        case _:
            return f"{type(frame).__name__} ({origin})"


def _show_event(event: Event | None) -> str:
    match event:
        case None:
            return "begin"
        case Frames(log, items, end):
            return f"{log.key}{log.replica}[{end}] " + "; ".join(f"@{at} {_show_frame(frame)}" for at, frame in items)
        case ReadDone(log, token, items):
            return f"read {token} {log.key}{log.replica} " + "; ".join(_show_frame(frame) for _, frame in items)
        case Tail(log, frame):
            return f"tail {log.key}{log.replica} {_show_frame(frame)}"
        case Received(message):
            return f"received {message}"
        case _:
            return str(event)


def _show_effect(effect: Effect) -> str:
    match effect:
        case Append(log, frame):
            return f"{log.key}{log.replica} <- {_show_frame(frame)}"
        case Send(to, message):
            return f"to {to}: {message}"
        case StoreCheckpoint():
            return f"store checkpoint {effect.number} at {_event_time(effect.time)}"
        case StateChanged(state):
            return f"=== {state.value if state is not None else 'DEAD'}"
        case _:
            return str(effect)


_DULL = ("Heartbeat(", "PathAfter(")


def _is_dull(text: str) -> bool:
    return any(word in text for word in _DULL)


def _listen(simulation: Simulation, write: Callable[[str], None]) -> None:
    """Write a line for each piece of work and each of its effects, without heartbeats and what else is routine."""
    world = simulation.world

    def write_work(process: Process, event: Event | None) -> None:
        text = _show_event(event)
        if not isinstance(event, Tick) and not _is_dull(text):
            write(f"{world.now:>8} {process.id} < {text}")

    def write_effect(process: Process, effect: Effect) -> None:
        text = _show_effect(effect)
        if not isinstance(effect, Acknowledge) and not _is_dull(text):
            write(f"{world.now:>8} {process.id} > {text}")

    world.on_work.append(write_work)
    world.on_effect.append(write_effect)


def main(arguments: list[str]) -> None:
    for line in trace(int(arguments[0]), arguments[1] if len(arguments) > 1 else None):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
