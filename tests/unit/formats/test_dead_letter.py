"""Dead letters, the notes of what was put back, and choices among them."""

from __future__ import annotations

import json

import pytest

from formats.dead_letter import LONGEST_TEXT, DeadLetterRecord, LetterChoice, ReplayNote, read_letter, text_of


def letter(record: str = '{"n": 1}', source: str = "jfk", reason: str = "late by 1s") -> DeadLetterRecord:
    return DeadLetterRecord(source, "flights.jfk", 0, 12, reason, record)


def test_letters_and_notes_are_read_as_they_were_written() -> None:
    note = ReplayNote("jfk", (3, 4), "ops (operator)")
    assert read_letter(letter().to_json()) == letter() and read_letter(note.to_json()) == note
    for text in (b"[]", b"{}", b"not JSON", b'{"replayed": 3, "source": "s", "by": "x"}'):
        with pytest.raises((KeyError, TypeError, ValueError)):
            read_letter(text)


def test_a_record_is_known_by_its_letter_only_where_that_has_all_of_it() -> None:
    assert letter("größer").value == "größer".encode()
    assert letter("").value is None
    assert letter(text_of(b'{"n": "\xff"}')).value is None
    assert letter(text_of(b"x" * (LONGEST_TEXT - 1))).value is not None
    assert letter(text_of(b"x" * LONGEST_TEXT)).value is None


def test_a_choice_is_by_stream_reason_and_time() -> None:
    assert LetterChoice().takes(letter(), 5.0)
    assert LetterChoice("jfk", "late", 5.0).takes(letter(), 5.0)
    assert not LetterChoice("lga").takes(letter(), 5.0)
    assert not LetterChoice(reason="ahead").takes(letter(), 5.0)
    assert not LetterChoice(since_ms=5.1).takes(letter(), 5.0)


def test_a_letter_is_an_object_with_the_documented_fields() -> None:
    assert list(json.loads(letter().to_json())) == ["source", "topic", "partition", "offset", "reason", "record"]


def test_a_record_that_is_no_text_is_in_its_letter_byte_for_byte() -> None:
    for value in (b"\0\0\0\0\7\xff", b"\\x00 in words", bytes(range(256))):
        made = DeadLetterRecord.of("jfk", "flights.jfk", 0, 12, "late", value)
        assert read_letter(made.to_json()) == made and made.value == value
    plain = DeadLetterRecord.of("jfk", "flights.jfk", 0, 12, "late", b"{}")
    assert plain.base64 is None and b"base64" not in plain.to_json() and plain.value == b"{}"
    long = DeadLetterRecord.of("jfk", "flights.jfk", 0, 12, "late", b"\xff" * LONGEST_TEXT)
    assert long.base64 is None and long.value is None and len(long.record) == LONGEST_TEXT
