"""A scenario's full trace in words: what each place saw and did, when, and what the client was given in the end.

What runs are the production objects, in the simulator's world and in virtual time, so the same script gives the same words.
A story only listens: to events and effects (`SimulatedWorld.on_work`, `on_effect`), to what is logged (`World.on_append`), and
to the orders that an instance gives its operator host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from boreal.model.frames import Frame, LogId
from simulation.run import Simulation, observe
from simulation.scenario import Scenario
from tests.scenarios.places import Client, Place, Source
from tests.scenarios.script import FOLDER, read_script
from tests.scenarios.telling import Story

SEPARATOR = "----\n"

PAGE = FOLDER.parents[1] / "docs" / "scenarios.md"
_SHOWN = re.compile(r"(?<=<!-- )(?P<name>\w+\.txt)(?P<between> -->\n```text\n).*?(?=```)", re.DOTALL)


def files() -> list[Path]:
    """The scenarios, in order."""
    return sorted(FOLDER.glob("*.txt"))


def played(text: str) -> str:
    """A scenario's file as it should be: its script, and below the separator the trace that it gives now."""
    script = text.partition(SEPARATOR)[0]
    return script + SEPARATOR + "".join(f"{line}\n" for line in tell(script))


def illustrated(page: str) -> str:
    """docs/scenarios.md as it should be: where it names a file above a block, the block shows the file."""

    def show(match: re.Match[str]) -> str:
        return match["name"] + match["between"] + (FOLDER / match["name"]).read_text(encoding="utf-8")

    return _SHOWN.sub(show, page)


def tell(text: str) -> Iterator[str]:
    """The lines of a script's trace."""
    script = read_script(text)
    # Until its first boundary has come no input is known to be well.
    story = Story(script.observe, since=2 * script.scenario.plan.boundary_interval_us)
    for since, until, fault in script.faults:
        story.tell(since, "fault", fault)
        story.tell(until, "heals", fault)
    client = _play(script.scenario, story)
    yield from story.lines()
    yield ""
    yield from client.view()
    if script.faults:
        calm = _play(replace(script.scenario, strikes=()), Story(frozenset()))
        assert client.stable == calm.stable, "stable rows do not depend on faults (I1)"
        yield "Without the faults the stable rows are the same."


def _play(scenario: Scenario, story: Story) -> Client:
    """Run a scenario to its end, telling what happens."""
    client = Client(scenario.plan, story)
    observed = observe(scenario, spy=lambda simulation: _listen(simulation, story, client))
    assert observed.error is None, observed.error
    assert observed.settled, f"not settled: {observed.unsettled}"
    return client


def _listen(simulation: Simulation, story: Story, client: Client) -> None:
    world, log_frame = simulation.world, simulation.world.on_append
    instances = {who: Place(story, who, lambda: world.now) for who in world.processes}
    sources = {name: Source(story) for name in simulation.sources}

    def on_append(log: LogId, frame: Frame, now: int) -> None:
        log_frame(log, frame, now)
        if log == simulation.shown:
            client.take(frame, now)
        elif log.stream in sources:
            sources[log.stream].note(log, frame, now)

    def introduce() -> None:
        for place in instances.values():
            place.introduce()

    world.on_append = on_append
    world.on_work.append(lambda process, event: instances[process.id].note_work(process, event))
    world.on_effect.append(lambda process, effect: instances[process.id].note_effect(process, effect))
    world.at(story.since, introduce)
