"""What every checkpoint store promises (R19, R26), and how the file store keeps it through crashes."""

import os
from pathlib import Path

import pytest

from boreal.model.errors import CorruptError
from embedded.file_checkpoints import FileCheckpointStore
from logs.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint

NAME = "departures.main.r0.0"


def checkpoint(number: int, instance: str = NAME, state: bytes = b"state") -> Checkpoint:
    return Checkpoint(instance, number, 1000 * number, -5, (("out/0", 7), ("out/1", 8)), (("jfk/0", 3),), state)


def flip(place: int, bit: int = 0):
    def change(data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        return bytes(damaged)

    return change


def test_encoding_is_exact_and_deterministic():
    one = checkpoint(3, state=bytes(range(256)))
    assert decode_checkpoint(encode_checkpoint(one)) == one
    assert encode_checkpoint(one) == encode_checkpoint(checkpoint(3, state=bytes(range(256))))


def test_a_flipped_bit_anywhere_is_seen():
    encoded = encode_checkpoint(checkpoint(3))
    for place in range(len(encoded)):
        for bit in range(8):
            with pytest.raises(CorruptError):
                decode_checkpoint(flip(place, bit)(encoded))


def test_errors_say_what_is_wrong():
    encoded = encode_checkpoint(checkpoint(3))
    for size in range(len(encoded)):
        with pytest.raises(CorruptError, match="bytes"):
            decode_checkpoint(encoded[:size])
    with pytest.raises(CorruptError, match="unknown version of checkpoint: 2"):
        decode_checkpoint(encoded[:2] + b"\x02" + encoded[3:])
    with pytest.raises(CorruptError, match="not a checkpoint"):
        decode_checkpoint(b"{}" + encoded[2:])
    with pytest.raises(CorruptError, match="digest"):
        decode_checkpoint(flip(-40)(encoded))


def test_what_was_put_is_there_after_reopening(checkpoints):
    for number in (1, 2, 10):
        checkpoints.store.put(checkpoint(number))
    checkpoints.store.put(checkpoint(5, instance="other/../one"))
    for store in (checkpoints.store, checkpoints.reopen()):
        assert store.numbers(NAME) == [1, 2, 10]
        assert store.latest(NAME) == checkpoint(10)
        assert store.get(NAME, 2) == checkpoint(2)
        assert store.get("other/../one", 5) == checkpoint(5, instance="other/../one")
        assert store.damaged == []


def test_what_was_never_put_is_absent(checkpoints):
    assert checkpoints.store.latest(NAME) is None
    assert checkpoints.store.numbers(NAME) == []
    checkpoints.store.drop(NAME, 5)
    checkpoints.store.put(checkpoint(1))
    with pytest.raises(KeyError):
        checkpoints.store.get(NAME, 2)
    with pytest.raises(KeyError):
        checkpoints.store.get("other", 1)


def test_a_second_put_of_a_number_takes_the_place_of_the_first(checkpoints):
    checkpoints.store.put(checkpoint(1, state=b"a longer one"))
    checkpoints.store.put(checkpoint(1, state=b"new"))
    assert checkpoints.store.latest(NAME).state == b"new"


def test_drop_forgets_the_older_of_one_instance(checkpoints):
    for number in (1, 2, 3):
        checkpoints.store.put(checkpoint(number))
    checkpoints.store.put(checkpoint(1, instance="other"))
    checkpoints.store.drop(NAME, 3)
    assert checkpoints.store.numbers(NAME) == [3]
    assert checkpoints.store.numbers("other") == [1]


def test_latest_passes_over_damaged_ones_and_says_which(checkpoints):
    for number in (1, 2, 3):
        checkpoints.store.put(checkpoint(number))
    checkpoints.damage(NAME, 3, flip(30))
    checkpoints.damage(NAME, 2, lambda data: data[:-10])
    for _ in range(2):
        assert checkpoints.store.latest(NAME) == checkpoint(1)
    assert checkpoints.store.damaged == [(NAME, 3), (NAME, 2)]
    with pytest.raises(CorruptError):
        checkpoints.store.get(NAME, 2)
    checkpoints.damage(NAME, 1, lambda data: b"")
    assert checkpoints.store.latest(NAME) is None


def test_another_ones_checkpoint_in_its_place_is_damage(checkpoints):
    checkpoints.store.put(checkpoint(1))
    checkpoints.store.put(checkpoint(2))
    checkpoints.damage(NAME, 2, lambda data: encode_checkpoint(checkpoint(1)))
    assert checkpoints.store.latest(NAME) == checkpoint(1)
    assert checkpoints.store.damaged == [(NAME, 2)]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_file_a_put_that_did_not_finish_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str):
    store = FileCheckpointStore(tmp_path)
    store.put(checkpoint(1))

    def crash(*_: object) -> None:
        raise OSError("crashed here")

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr("embedded.file_checkpoints.encode_checkpoint", crash)
        else:
            patch.setattr(os, step, crash)
        with pytest.raises(OSError, match="crashed here"):
            store.put(checkpoint(2))
    assert FileCheckpointStore(tmp_path).numbers(NAME) == [1]
    assert FileCheckpointStore(tmp_path).latest(NAME) == checkpoint(1)
    store.drop(NAME, 3)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
