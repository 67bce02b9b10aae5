"""Compile Protobuf schemas of a registry to descriptors.

Registries keep a schema as text or, if a client sent it so, as a serialized descriptor in base64.
Protobuf's own compiler reads both. Confluent's registry returns descriptors on request, but others
fail to do so for schemas with imports.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import Reference
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import SchemaError
from dbt.adapters.iceberg_stream.stream.sources.formats.wire_format import zigzag_bytes

# The file of the schema itself, which no schema imports.
MAIN = "registered_schema.proto"
# Short for the index of a schema's first message.
FIRST = b"\0"
# Files that Confluent's registry adds to each schema.
META = """
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
DECIMAL = """
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
BUILT_IN = {"confluent/meta.proto": META, "confluent/type/decimal.proto": DECIMAL}
COMPILE_SECONDS = 60.0


def read_files(files: bytes) -> tuple[FileDescriptorProto, DescriptorPool]:
    """Return the file of a schema, and a pool with its messages and those that it imports.

    Args:
        files: as compiled_files returns them.

    Raises:
        SchemaError: this version of Protobuf's package cannot read them.
    """
    pool = DescriptorPool()
    read = FileDescriptorSet.FromString(files).file
    for file in read:
        try:
            pool.Add(file)
        except TypeError as error:
            raise SchemaError(f"Python's protobuf cannot read: {error}") from error
    return read[-1], pool


def message_indexes(file: FileDescriptorProto) -> dict[str, tuple[int, ...]]:
    """Return the messages of a file, and those within them, by full name and in their order.

    Args:
        file: the file.

    Returns:
        The position of each in the file, preceded by those of the messages that it is within.
    """
    indexes: dict[str, tuple[int, ...]] = {}
    waiting: list[tuple[str, tuple[int, ...], Sequence[DescriptorProto]]]
    waiting = [(file.package, (), file.message_type)]
    while waiting:
        outer, begin, messages = waiting.pop(0)
        for position, message in enumerate(messages):
            if not message.options.map_entry:
                name = f"{outer}.{message.name}" if outer else message.name
                indexes[name] = (*begin, position)
                waiting.append((name, indexes[name], message.nested_type))
    return indexes


def index_bytes(index: Sequence[int]) -> bytes:
    """Return a message index in full, as Confluent's serializers write it before a message.

    Args:
        index: position of the message, preceded by those of the messages that it is within.
    """
    return b"".join(map(zigzag_bytes, (len(index), *index)))


@lru_cache(maxsize=1024)
def compiled_files(text: str, references: Sequence[Reference] = ()) -> bytes:
    """Return the serialized descriptors of a schema and of what it imports, itself last.

    Args:
        text: the schema.
        references: schemas that it imports, by the names of their files.

    Raises:
        SchemaError: it cannot be compiled.
        StreamError: Protobuf's compiler is not installed.
    """
    sources = {**BUILT_IN, **dict(references), MAIN: text}
    descriptors = {name: file for name, text in sources.items() if (file := _descriptor(text))}
    for name, file in descriptors.items():
        file.name = name
    with tempfile.TemporaryDirectory(prefix="protobuf-") as folder:
        for name, source in sources.items():
            if name not in descriptors:
                path = Path(folder, _checked(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source, encoding="utf-8")
        return _run_protoc(Path(folder), descriptors)


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SchemaError(f"imports `{name}`, which is no name of a file within the schema")
    return name


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the file of a serialized descriptor; None for text."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None


def _run_protoc(folder: Path, descriptors: Mapping[str, FileDescriptorProto]) -> bytes:
    compiler = find_spec("grpc_tools")
    if compiler is None or compiler.origin is None:
        raise StreamError(
            "Streams of messages in Protobuf need its compiler: "
            "pip install 'dbt-iceberg-stream[kafka]'."
        )
    output = folder / "compiled"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
    command += [f"-I{Path(compiler.origin).parent / '_proto'}", *_common_types()]
    if descriptors:
        descriptor_set = folder / "descriptors"
        descriptor_set.write_bytes(FileDescriptorSet(file=descriptors.values()).SerializeToString())
        command.append(f"--descriptor_set_in={descriptor_set}")
    command += ["--include_imports", f"--descriptor_set_out={output}", MAIN]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, timeout=COMPILE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise SchemaError(f"Protobuf's compiler does not compile in {COMPILE_SECONDS:.0f} s") from (
            None
        )
    if result.returncode:
        raise SchemaError(f"Protobuf's compiler refuses: {_reason(result.stderr)}")
    return output.read_bytes()


def _common_types() -> list[str]:
    """Return the option with the folder of google/type, which registries add to each schema."""
    common = find_spec("google.type")
    folders = list(common.submodule_search_locations or ()) if common else []
    return [f"-Igoogle/type={folder}" for folder in folders]


def _reason(output: str) -> str:
    """Return the first error of the compiler, without the name of the file that only we know."""
    # Its own log has lines such as `W0000 00:00:… parser.cc:614] …`.
    lines = [line for line in output.splitlines() if line and not re.match(r"[IW]\d{4} ", line)]
    lines = [line for line in lines if "warning:" not in line.lower()]
    first = lines[0] if lines else "it reports no reason"
    return first.rpartition(f"{MAIN}:")[2].strip().rstrip(".")
