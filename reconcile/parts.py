"""Orders and answers that are too large for one record of a log are split into several records, called parts.

    magic
    facts      life (the incarnation), place (the number of the order), part (from 0), parts (how many)
    part       a piece of the bytes; all but the last have the same size

A writer writes the parts of one order, or answer, in order. Parts of another writer may stand between them.
"""

from __future__ import annotations

from operators.encoding import pack, unpack
from reconcile.orders import Place

PART_BYTES = 16 << 20
"""A quarter of what a record may hold. Larger parts would cost too much memory in a process that holds several at once."""

_MAGIC = b"boreal part 1\n"
_KIND = "part"


def in_parts(place: Place, data: bytes, part_bytes: int = PART_BYTES) -> list[bytes]:
    """The records of an order, or of an answer: the bytes themselves if they fit, otherwise their parts."""
    if len(data) <= part_bytes:
        return [data]
    pieces = [data[begin : begin + part_bytes] for begin in range(0, len(data), part_bytes)]
    facts = {"life": place.incarnation, "place": place.number, "parts": len(pieces)}
    return [_MAGIC + pack(_KIND, {**facts, "part": at}, [piece]) for at, piece in enumerate(pieces)]


def is_part(data: bytes) -> bool:
    """Whether a record is a part. CorruptError if it is a damaged part."""
    if not data.startswith(_MAGIC):
        return False
    unpack(data[len(_MAGIC) :], _KIND)
    return True


class Parts:
    """Joins the parts that one log holds.

    `place` is the place of the newest order or answer in parts; incarnation 0 if there was none.
    """

    def __init__(self) -> None:
        self.place = Place(0, 0)
        self._pieces: dict[int, bytes] = {}

    def take(self, data: bytes) -> bytes | None:
        """The bytes that are complete with this record. None if parts are missing, or if the part belongs to an earlier place:
        an earlier incarnation, or an order that a slow writer has repeated. CorruptError for a damaged part."""
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
