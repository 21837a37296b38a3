"""Who reaches whom: cuts of both directions, of one, and of messages alone."""

from __future__ import annotations

import pytest

from embedded.network import LinkCut, Network

PLACES = ("jfk", "main.r0", "main.r1")


def _passing(cut: LinkCut) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """(pairs of writer and reader, of sender and receiver) that still reach each other."""
    network = Network(cuts=[cut])
    pairs = [(here, there) for here in PLACES for there in PLACES if here != there]
    data = {pair for pair in pairs if network.passes_data(*pair)}
    return data, {pair for pair in pairs if network.passes_messages(*pair)}


@pytest.mark.parametrize(
    "cut, lost",
    [
        (LinkCut("jfk"), {("jfk", "main.r0"), ("jfk", "main.r1"), ("main.r0", "jfk"), ("main.r1", "jfk")}),
        (LinkCut("main.r0", "main.r1"), {("main.r0", "main.r1"), ("main.r1", "main.r0")}),
        (LinkCut("main.r0", one_way=True), {("main.r0", "jfk"), ("main.r0", "main.r1")}),
        (LinkCut("main.r0", "main.r1", one_way=True), {("main.r0", "main.r1")}),
    ],
)
def test_a_cut_holds_both_data_and_messages(cut: LinkCut, lost: set[tuple[str, str]]) -> None:
    everything = _passing(LinkCut("nowhere"))[0]
    assert _passing(cut) == (everything - lost, everything - lost)


def test_a_cut_of_messages_lets_data_pass() -> None:
    everything = _passing(LinkCut("nowhere"))[0]
    data, messages = _passing(LinkCut("main.r0", "main.r1", control_only=True))
    assert data == everything
    assert everything - messages == {("main.r0", "main.r1"), ("main.r1", "main.r0")}
