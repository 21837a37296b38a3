"""Orders and answers that are too large for one record of a log travel in several: parts, each with its place.

    magic
    facts      life (incarnation), place (the order's number), part, parts
    part       a piece of the bytes, all but the last of the same size

Who writes a log writes the parts of one order, or answer, in their order; parts of another writer may stand between them.
"""

from __future__ import annotations

from operators.encoding import pack, unpack
from reconcile.orders import Place

PART_BYTES = 16 << 20
"""A quarter of what a record may hold: what is larger is hard on whoever holds several at once."""

_MAGIC = b"boreal part 1\n"
_KIND = "part"


def in_parts(place: Place, data: bytes, part_bytes: int = PART_BYTES) -> list[bytes]:
    """The records that an order, or the answer to it, travels in: itself, if it is not too large."""
    if len(data) <= part_bytes:
        return [data]
    pieces = [data[begin : begin + part_bytes] for begin in range(0, len(data), part_bytes)]
    facts = {"life": place.incarnation, "place": place.number, "parts": len(pieces)}
    return [_MAGIC + pack(_KIND, {**facts, "part": at}, [piece]) for at, piece in enumerate(pieces)]


def is_part(data: bytes) -> bool:
    """CorruptError for a part that is damaged."""
    if not data.startswith(_MAGIC):
        return False
    unpack(data[len(_MAGIC) :], _KIND)
    return True


class Parts:
    """Puts together what one log holds in parts. place: of what is not whole yet; life 0 is none at all."""

    def __init__(self) -> None:
        self.place = Place(0, 0)
        self._pieces: dict[int, bytes] = {}

    def take(self, data: bytes) -> bytes | None:
        """What is whole with this record; None where more is to come, or for a part of what is over: of an earlier life, or
        given again by somebody who is behind. CorruptError for a part that is damaged."""
        if not data.startswith(_MAGIC):
            return data
        facts, (piece,) = unpack(data[len(_MAGIC) :], _KIND)
        life, number, part, parts = (int(str(facts[name])) for name in ("life", "place", "part", "parts"))
        place = Place(life, number)
        if place < self.place:
            return None
        if place > self.place:
            self.place, self._pieces = place, {}
        self._pieces[part] = piece
        if len(self._pieces) < parts:
            return None
        whole = b"".join(self._pieces[at] for at in range(parts))
        self._pieces = {}
        return whole
