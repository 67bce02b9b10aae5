"""The source that a model's `stream(…)` means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.definition_check import (
    FLAGS,
    as_flag,
    wrong_values,
)
from dbt.adapters.iceberg_stream.stream.sources.envelopes import Envelope, envelope
from dbt.adapters.iceberg_stream.stream.sources.files import files_source
from dbt.adapters.iceberg_stream.stream.sources.iceberg import IcebergSource
from dbt.adapters.iceberg_stream.stream.sources.kafka import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka_options import java_options, secret_options
from dbt.adapters.iceberg_stream.stream.sources.source import Source

STARTS = ("earliest", "latest")
KNOWN = {
    "kafka": {"type", "topic", "options", "bootstrap_servers", "format", "columns", "table"}
    | {"tombstones", "starting", "connection", "key", "transactions"}
    | {"table_column", "topics", "transaction_topic"},
    "files": {"type", "path", "format", "columns", "options", "late_seconds"},
    "iceberg": {"type", "skip_changes", "changes"},
}
# Options of Kafka's clients by a name that sources give.
Connections = Mapping[str, Mapping[str, Any]]
NO_CONNECTIONS: Connections = {}

# How records are read, which those who read one source may do differently.
READING = {"format", "columns", "table", "tombstones", "key", "table_column"}


@dataclass(frozen=True)
class SourceDefinition:
    """What a model says of its source.

    Attributes:
        name: of the relation in the catalog, and as Spark names it.
        spec: `type` and what belongs to it; an Iceberg table if it is empty.
    """

    name: Name
    relation: str
    spec: Mapping[str, Any]

    @property
    def place(self) -> Any:
        """What tells the source, however its records are read: frontiers of equal ones compare."""
        # Of several topics, which one is read does not change what frontiers are of.
        reading = READING | {"topic"} if self.spec.get("topics") else READING
        told = {str(k): str(v) for k, v in self.spec.items() if k not in reading}
        if isinstance(topics := self.spec.get("topics"), list | tuple):
            told["topics"] = str(sorted(set(map(str, topics))))
        return (self.name if self.spec.get("type", "iceberg") == "iceberg" else None, told)


def open_source(
    definition: SourceDefinition,
    catalog: IcebergCatalog,
    project_root: Path,
    storage: Mapping[str, str],
    connections: Connections = NO_CONNECTIONS,
    keys: Sequence[str] = (),
    required: Sequence[str] = (),
) -> Source:
    """The source, not asked yet.

    `storage` are the properties of the storage's client, `connections` options of Kafka's, and
    `keys` columns that tell a row of the table that the stream writes, `required` columns of the
    source that they are.

    Raises:
        StreamError: the definition has errors.
    """
    spec = dict(definition.spec)
    kind = str(spec.get("type") or "iceberg")
    if kind not in KNOWN:
        raise StreamError(f"{must_be_one_of('type', kind, KNOWN)}. It says what the stream reads.")
    if unknown := set(spec) - KNOWN[kind]:
        raise StreamError(
            f"A stream of type {kind} has no {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(sorted(KNOWN[kind]))}."
        )
    if wrong := wrong_values(spec):
        raise StreamError(f"The stream's source has errors: {'; '.join(wrong)}.")
    spec |= {name: as_flag(spec[name]) for name in FLAGS if spec.get(name) is not None}
    if kind == "kafka":
        return _kafka(spec, connections, envelope(spec, keys, required))
    if kind == "files":
        return _files(spec, project_root, storage, required)
    skip, changes = bool(spec.get("skip_changes")), bool(spec.get("changes"))
    if skip and changes:
        raise StreamError("A stream has `changes` or `skip_changes`, not both.")
    return IcebergSource(catalog, definition.name, definition.relation, skip, changes, bool(keys))


def _kafka(spec: dict[str, Any], connections: Connections, messages: Envelope) -> Source:
    own = _texts(spec.get("options") or {})
    if secrets := secret_options(own):
        raise StreamError(
            f"The options of a Kafka source hold a secret, {', '.join(secrets)}, and dbt writes "
            "sources into its artifacts. Put it into the profile, as an option of a connection "
            "under `kafka`, and name that by `connection`."
        )
    options = _connection(spec.get("connection"), connections) | own
    if spec.get("bootstrap_servers"):
        options["bootstrap.servers"] = str(spec["bootstrap_servers"])
    topics = spec.get("topics") or ()
    if "bootstrap.servers" not in options or not (spec.get("topic") or topics):
        raise StreamError(
            "A stream from Kafka needs `topic`, or `topics`, and `bootstrap_servers`."
        )
    starting = str(spec.get("starting") or "earliest")
    if starting not in STARTS:
        raise StreamError(f"{must_be_one_of('starting', starting, STARTS)}.")
    java_options(options)  # what is wrong with them is told now
    return KafkaSource(
        str(spec["topic"]) if spec.get("topic") else None,
        options,
        messages,
        starting,
        bool(spec.get("transactions")),
        tuple(dict.fromkeys(map(str, topics))),
        str(spec["transaction_topic"]) if spec.get("transaction_topic") else None,
    )


def _connection(name: object, connections: Connections) -> dict[str, str]:
    if name is None:
        return {}
    if name not in connections:
        known = ", ".join(connections) or "none"
        raise StreamError(
            f"`connection: {name}` of a Kafka source is not in the profile's `kafka`, which has: "
            f"{known}."
        )
    return _texts(connections[str(name)])


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """As Kafka's clients take them."""
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _files(
    spec: dict[str, Any],
    project_root: Path,
    storage: Mapping[str, str],
    required: Sequence[str],
) -> Source:
    if not spec.get("path"):
        raise StreamError("A stream of files needs `path`, a folder.")
    path = str(spec["path"])
    if "://" not in path:
        path = f"file://{(project_root / path).resolve()}"
    scheme, netloc, folder = PyArrowFileIO.parse_location(path, dict(storage))
    filesystem = PyArrowFileIO(dict(storage)).fs_by_scheme(scheme, netloc)
    return files_source({**spec, "path": path}, filesystem, folder, required)
