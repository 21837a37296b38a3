"""Protobuf schemas that are text become descriptors, as protoc makes them, or say why they do not."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from services.hosting import proto_text
from services.hosting.proto_text import ProtoTextError, descriptor_of, is_text

WHO = 'syntax = "proto3"; package shop; message Who { string user = 1; }'
CLICK = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "shop/who.proto";
message Click { google.protobuf.Timestamp at = 1; Who who = 2; }
"""


def test_a_text_is_no_descriptor() -> None:
    assert is_text(WHO) and not is_text(b64encode(FileDescriptorProto(name="a.proto").SerializeToString()).decode())


def test_a_text_becomes_its_file_with_what_it_imports() -> None:
    pytest.importorskip("grpc_tools")
    made = descriptor_of(CLICK, {"shop/who.proto": WHO})
    assert made is not None
    file = FileDescriptorProto.FromString(b64decode(made))
    assert list(file.dependency) == ["google/protobuf/timestamp.proto", "shop/who.proto"]
    assert [field.name for field in file.message_type[0].field] == ["at", "who"]


@pytest.mark.parametrize(
    ("text", "references"),
    [("message {", {}), (CLICK, {}), (CLICK, {"shop/who.proto": WHO, "../who.proto": WHO}), (WHO, {"/who.proto": WHO})],
)
def test_a_text_that_does_not_compile_or_that_leaves_its_directory_has_none(text: str, references: dict[str, str]) -> None:
    pytest.importorskip("grpc_tools")
    assert descriptor_of(text, references) is None


def test_without_the_compiler_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_text, "find_spec", lambda name: None)
    with pytest.raises(ProtoTextError, match=r"grpcio-tools is not installed: pip install 'boreal\[registry\]'"):
        descriptor_of(WHO, {})
