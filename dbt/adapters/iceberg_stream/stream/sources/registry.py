"""Open the source that a model's `stream(…)` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.locations import file_uri, split_location
from dbt.adapters.iceberg_stream.catalog.storage import CatalogFileIO
from dbt.adapters.iceberg_stream.errors.redaction import holds_secret
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.definition_check import (
    FLAGS,
    as_flag,
    definition_errors,
)
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.formats.envelopes import (
    Envelope,
    envelope,
    schema_format,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_registry import (
    PREFIX,
    SchemaRegistry,
)
from dbt.adapters.iceberg_stream.stream.sources.iceberg.source import IcebergSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.client_options import secret_options
from dbt.adapters.iceberg_stream.stream.sources.kafka.plain_schema import PlainSchema
from dbt.adapters.iceberg_stream.stream.sources.kafka.plaintext import (
    ALLOW_PLAINTEXT,
    require_private_brokers,
    require_private_registry,
)
from dbt.adapters.iceberg_stream.stream.sources.kafka.source import KafkaSource
from dbt.adapters.iceberg_stream.stream.sources.kafka.token_command import with_token_command
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_keys import TopicKeys
from dbt.adapters.iceberg_stream.stream.sources.kafka.topic_schemas import TopicSchemas
from dbt.adapters.iceberg_stream.stream.sources.postgres.definition import postgres_source
from dbt.adapters.iceberg_stream.stream.sources.source import Source

STARTS = ("earliest", "latest")
DEFINITION_KEYS = {
    "kafka": {"type", "topic", "options", "bootstrap_servers", "format", "columns", "table"}
    | {"tombstones", "starting", "connection", "key", "transactions"}
    | {"table_column", "topics", "transaction_topic"}
    | {"encoding", "schema_registry", "subject", "message", "record", "key_record"}
    | {"metadata_columns", "schema_file"},
    "files": {"type", "path", "format", "columns", "options", "late_seconds"},
    "iceberg": {"type", "skip_changes", "changes"},
    "postgres": {"type", "connection", "table", "publication"},
}
# Options of Kafka's clients by the name of a `connection`.
Connections = Mapping[str, Mapping[str, Any]]
NO_CONNECTIONS: Connections = {}

# Keys that say how records are decoded: models that read one source may differ in them.
DECODING_KEYS = {"format", "columns", "table", "tombstones", "key", "table_column", "message"} | {
    "record",
    "key_record",
    "metadata_columns",
    "schema_file",
}


@dataclass(frozen=True)
class SourceDefinition:
    """The definition of a model's source.

    Attributes:
        name: of the source's relation in the catalog.
        relation: the same relation as text for Spark.
        spec: `type` and its keys, from `config.meta.stream` and from the model's `stream(…)`; an
            Iceberg table if it is empty.
        catalog: the catalog of an Iceberg table; the profile's own by default.
    """

    name: Name
    relation: str
    spec: Mapping[str, Any]
    catalog: str | None = None

    @property
    def identity(self) -> Any:
        """A value that is equal for definitions of one source, however they decode its records.

        Frontiers of equal identities can be compared.
        """
        # With `topics` a frontier covers all of them, whichever one the model reads.
        ignored = DECODING_KEYS | {"topic"} if self.spec.get("topics") else DECODING_KEYS
        # Only frontiers of these formats have the ids of schemas, and only with tombstones those of
        # keys.
        if encoding := schema_format(self.spec.get("format"), self.spec.get("encoding")):
            ignored = ignored - {"tombstones"}
        spec = {str(k): str(v) for k, v in self.spec.items() if k not in ignored}
        spec["encoding"] = encoding or "json"
        if isinstance(topics := self.spec.get("topics"), list | tuple):
            spec["topics"] = str(sorted(set(map(str, topics))))
        is_table = self.spec.get("type", "iceberg") == "iceberg"
        return ((self.catalog, self.name) if is_table else None, spec)


def open_source(
    definition: SourceDefinition,
    catalog: IcebergCatalog,
    project_root: Path,
    storage: Mapping[str, str],
    connections: Connections = NO_CONNECTIONS,
    keys: Sequence[str] = (),
    required: Sequence[str] = (),
    stage: Callable[[Name], int | None] | None = None,
    databases: Connections = NO_CONNECTIONS,
    consumer: str = "",
) -> Source:
    """Open the source of a definition, without connecting to it.

    Args:
        definition: the source's definition.
        catalog: the catalog of Iceberg sources.
        project_root: the folder that relative paths of files sources begin at.
        storage: properties of the storage's client, for files sources.
        connections: options of Kafka's clients by connection, from the profile's `kafka`.
        keys: columns that identify a row of the table that the stream writes.
        required: columns of the source that the keys are passed on from; records must have them.
        stage: returns a snapshot with the rows of an Iceberg table that is faster to read; None if
            there is none.
        databases: options of Postgres' connections, from the profile's `postgres`.
        consumer: identifies the stream.

    Raises:
        StreamError: the definition has errors.
    """
    spec = dict(definition.spec)
    kind = str(spec.get("type") or "iceberg")
    if kind not in DEFINITION_KEYS:
        raise StreamError(
            f"{must_be_one_of('type', kind, DEFINITION_KEYS)}. It says what the stream reads."
        )
    if unknown := set(spec) - DEFINITION_KEYS[kind]:
        raise StreamError(
            f"A stream of type {kind} has no {', '.join(sorted(unknown))}. It has: "
            f"{', '.join(sorted(DEFINITION_KEYS[kind]))}."
        )
    if errors := definition_errors(spec):
        raise StreamError(f"The stream's source has errors: {'; '.join(errors)}.")
    spec |= {name: as_flag(spec[name]) for name in FLAGS if spec.get(name) is not None}
    if kind == "kafka":
        messages = envelope(spec, keys, required)
        return _kafka(spec, connections, messages, _plain_schema(spec, messages, project_root))
    if kind == "files":
        return _files(spec, project_root, storage, required)
    if kind == "postgres":
        return postgres_source(spec, databases, consumer, keys)
    skip, changes = bool(spec.get("skip_changes")), bool(spec.get("changes"))
    if skip and changes:
        raise StreamError(
            "A stream can have `changes` or `skip_changes`, not both. Remove one of them."
        )
    name, relation = definition.name, definition.relation
    return IcebergSource(catalog, name, relation, skip, changes, bool(keys), stage)


def _kafka(
    spec: dict[str, Any], connections: Connections, messages: Envelope, plain: PlainSchema | None
) -> Source:
    own = _as_text(spec.get("options") or {})
    secrets = secret_options(own)
    secrets += [name for name in own if name == f"{PREFIX}url" and holds_secret(own[name])]
    if secrets:
        raise StreamError(
            f"The options of a Kafka source hold a secret, {', '.join(secrets)}, and dbt writes "
            "sources into its artifacts. Put it into the profile, as an option of a connection "
            "under `kafka`, and set `connection` to the name of that connection."
        )
    options = _connection(spec.get("connection"), connections)
    allow_plaintext = options.pop(ALLOW_PLAINTEXT, "false") == "true"
    options |= own
    registry = _registry(spec, options, messages)
    if registry is not None and not allow_plaintext:
        require_private_registry(registry.options)
    schemas = plain or _schemas(spec, registry, messages)
    keys = _keys(registry, messages)
    if messages.key_record and keys is None:
        raise StreamError(
            "`key_record` is of messages that delete rows, with keys in a schema registry: set "
            "`format: debezium` or `tombstones: delete`, and a registry, or remove it."
        )
    options = with_token_command({n: v for n, v in options.items() if not n.startswith(PREFIX)})
    if spec.get("bootstrap_servers"):
        options["bootstrap.servers"] = str(spec["bootstrap_servers"])
    topics = spec.get("topics") or ()
    if "bootstrap.servers" not in options or not (spec.get("topic") or topics):
        raise StreamError("A stream from Kafka needs `bootstrap_servers`, and `topic` or `topics`.")
    if not allow_plaintext:
        require_private_brokers(options)
    starting = str(spec.get("starting") or "earliest")
    if starting not in STARTS:
        raise StreamError(f"{must_be_one_of('starting', starting, STARTS)}.")
    return KafkaSource(
        str(spec["topic"]) if spec.get("topic") else None,
        options,
        messages,
        starting,
        bool(spec.get("transactions")),
        tuple(dict.fromkeys(map(str, topics))),
        str(spec["transaction_topic"]) if spec.get("transaction_topic") else None,
        schemas,
        keys,
        registry,
    )


def _plain_schema(
    spec: Mapping[str, Any], messages: Envelope, project_root: Path
) -> PlainSchema | None:
    """Return the schema of a source's `schema_file`; None without one."""
    path = spec.get("schema_file")
    if not path:
        return None
    if messages.schema_format != "avro":
        raise StreamError(
            "`schema_file` is of messages in Avro: set `format: avro`, or `encoding: avro` with "
            "`format: debezium`, or remove it."
        )
    if of_registry := [name for name in ("schema_registry", "subject") if spec.get(name)]:
        raise StreamError(
            f"The source has `schema_file` and `{of_registry[0]}`. Remove `{of_registry[0]}` if "
            "the messages have no id of a schema before them, and `schema_file` if they have."
        )
    if messages.tombstone_deletes:
        raise StreamError(
            "`schema_file` cannot be used with `tombstones: delete`: it is the schema of values, "
            "and a message without a value has only a key. Remove one of them."
        )
    try:
        return PlainSchema(messages, str(path), (project_root / str(path)).read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StreamError(
            f"`schema_file`: {project_root / str(path)} cannot be read: {why}. Set it to the path "
            "of an Avro schema, from the folder of the project."
        ) from error


def _keys(registry: SchemaRegistry | None, messages: Envelope) -> TopicKeys | None:
    """Return the schemas of the keys of messages that delete rows; None without a registry."""
    deletes_rows = messages.name == "debezium" or messages.tombstone_deletes
    if registry is None or not deletes_rows:
        return None
    return TopicKeys(registry, messages.key_record)


def _registry(
    spec: Mapping[str, Any], options: Mapping[str, str], messages: Envelope
) -> SchemaRegistry | None:
    """Return the registry of the source or of its connection; None without one."""
    own = {n.removeprefix(PREFIX): v for n, v in options.items() if n.startswith(PREFIX)}
    address = str(spec.get("schema_registry") or "")
    if messages.reads_schemas and address:
        if holds_secret(address):
            raise StreamError(
                "`schema_registry` holds a login, and dbt writes sources into its artifacts. Put "
                f"the address as `{PREFIX}url`, and the login as `{PREFIX}basic.auth.user.info`, "
                "into a connection of the profile's `kafka`."
            )
        own["url"] = address
    return SchemaRegistry(own) if own.get("url") else None


def _schemas(
    spec: Mapping[str, Any], registry: SchemaRegistry | None, messages: Envelope
) -> TopicSchemas | None:
    """Return the schemas of the topics' messages; None if they are not of a registry."""
    if not messages.reads_schemas:
        if named := [n for n in ("schema_registry", "subject", "record") if spec.get(n)]:
            raise StreamError(
                f"`{named[0]}` is of messages whose schemas are in a registry: set `format` to "
                "avro or protobuf, or `encoding` with `format: debezium`. For JSON, remove "
                "`columns`, or set `record`."
            )
        return None
    if registry is None:
        what = f"{(messages.schema_format or '`record`').capitalize()} needs"
        if messages.schema_format == "json":
            what = f"The format {messages.name} needs `columns`, as `name type, name type`, or"
        plain_avro = messages.schema_format == "avro"
        raise StreamError(
            f"{what} a schema registry: set `{PREFIX}url` in the `kafka` connection of the "
            "profile, or `schema_registry` in the source"
            + (", or `schema_file` for messages without the id of a schema." if plain_avro else ".")
        )
    return TopicSchemas(registry, messages, spec.get("subject"))


def _connection(name: object, connections: Connections) -> dict[str, str]:
    if name is None:
        return {}
    if name not in connections:
        raise StreamError(
            f"The profile has no Kafka connection `{name}`. Under `kafka` it has: "
            f"{', '.join(connections) or 'no connections'}. Add `{name}` there, or correct "
            "`connection` in the source."
        )
    return _as_text(connections[str(name)])


def _as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as text, which Kafka's clients take."""
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
        raise StreamError("A stream of files needs `path`: the folder where the files appear.")
    path = str(spec["path"])
    if "://" not in path:
        path = file_uri((project_root / path).resolve())
    scheme, netloc, folder = split_location(path)
    filesystem = CatalogFileIO(dict(storage)).fs_by_scheme(scheme, netloc)
    return files_source({**spec, "path": path}, filesystem, folder, required)
