"""Schemas of Protobuf as text, which some registries give, as descriptors: compiled by protoc, of the package grpcio-tools."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

COMPILES_WITHIN_S = 30.0
_OWN = "schema.proto"
_RESULT = "descriptor"


class ProtoTextError(Exception):
    """The compiler is not installed, or did not end."""


def is_text(schema: str) -> bool:
    """Whether a schema is text, and no descriptor in base64."""
    try:
        b64decode(schema, validate=True)
    except NotBase64:
        return True
    return False


def descriptor_of(text: str, references: Mapping[str, str]) -> str | None:
    """The descriptor of a schema in base64; None if protoc does not take its text. references: the texts of the files that it
    imports, and that those do, by their names. ProtoTextError."""
    if find_spec("grpc_tools") is None:
        raise ProtoTextError("gives a schema as text, and grpcio-tools is not installed: pip install 'boreal[registry]'")
    with TemporaryDirectory() as directory:
        for name, content in {**references, _OWN: text}.items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts:
                return None
            path = Path(directory, place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        # The program knows where the files of Google's own types are.
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={_RESULT}", _OWN]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, timeout=COMPILES_WITHIN_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProtoTextError(f"gives a schema as text, and protoc cannot compile it: {error}") from None
        return _only_file(Path(directory, _RESULT).read_bytes()) if done.returncode == 0 else None


def _only_file(compiled: bytes) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    [file] = FileDescriptorSet.FromString(compiled).file
    return b64encode(file.SerializeToString()).decode()
