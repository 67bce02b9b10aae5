"""Tables in a SQLite catalog, written to by our own commits and read back by PyIceberg's parser."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter

NAME = ("s", "t")
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "x", StringType(), required=False),
)
_numbers = itertools.count()


def make_catalog(folder: Path) -> IcebergCatalog:
    """A new catalog with the namespace `s`."""
    names = SqliteBackend("lake", folder / "warehouse")
    names.create_namespace("s")
    return IcebergCatalog("lake", names)


def make_table(
    lake: IcebergCatalog,
    version: int = 2,
    schema: Schema = SCHEMA,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: Mapping[str, str] | None = None,
    name: tuple[str, str] = NAME,
) -> LoadedTable:
    """An empty table."""
    staged = lake.stage(name, schema, spec, {"format-version": str(version), **(properties or {})})
    lake.commit(staged, (), ())
    return load(lake, name)


def evolve(
    lake: IcebergCatalog,
    schema: Schema | None = None,
    spec: PartitionSpec | None = None,
    properties: Mapping[str, str] | None = None,
    name: tuple[str, str] = NAME,
) -> None:
    """Give a table another schema, spec (whose ids are new) or properties, whatever its version."""
    updates: list[TableUpdate] = []
    if schema is not None:
        updates += [
            AddSchemaUpdate(schema=schema),
            SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
        ]
    if spec is not None:
        updates += [
            AddPartitionSpecUpdate(spec=spec),
            SetDefaultSpecUpdate.model_validate({"spec-id": -1}),
        ]
    if properties:
        updates.append(SetPropertiesUpdate(updates=dict(properties)))
    lake.commit(load(lake, name), (), updates)


def set_metadata(lake: IcebergCatalog, name: tuple[str, str] = NAME, **changed: Any) -> None:
    """Change metadata in their place, as no catalog does it; keys have underscores for dashes."""
    base = load(lake, name)
    new = {key.replace("_", "-"): value for key, value in changed.items()}
    with base.io.new_output(base.location).create(overwrite=True) as stream:
        stream.write(json.dumps({**base.metadata, **new}).encode())
    # The catalog remembers what it has written itself.
    lake._backend._last_written.clear()  # type: ignore[attr-defined]


def load(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> LoadedTable:
    table = lake.load(name)
    assert table is not None
    return table


def write(lake: IcebergCatalog, rows: pa.Table, name: tuple[str, str] = NAME) -> list[DataFile]:
    """Data files of the rows, not committed."""
    base = load(lake, name)
    with DataFileWriter(WriteTarget.of(base.metadata, base.io), "test", str(next(_numbers))) as w:
        w.write(rows.to_batches())
        return w.close()


def commit(
    lake: IcebergCatalog, change: Change, *updates: TableUpdate, name: tuple[str, str] = NAME
) -> Committed:
    return Committer(lake, name, change, load(lake, name), updates).commit()


def insert(lake: IcebergCatalog, rows: pa.Table, **properties: str) -> Committed:
    return commit(lake, append(*write(lake, rows), properties=properties))


def replace(lake: IcebergCatalog, rows: pa.Table) -> Committed:
    added = (AddedFiles(tuple(write(lake, rows))),)
    return commit(lake, Change(Operation.OVERWRITE, added, removes_all=True))


def rewrite(lake: IcebergCatalog, old: Sequence[DataFile], rows: pa.Table) -> Committed:
    """Rows in the place of files."""
    added = (AddedFiles(tuple(write(lake, rows))),)
    return commit(lake, Change(Operation.OVERWRITE, added, removed=tuple(old)))


def data_file(path: str, count: int = 1, partition: Sequence[Any] = (), **more: Any) -> DataFile:
    """A descriptor of a file that is not there."""
    spec = more.pop("spec_id", 0)
    file = DataFile.from_args(
        _table_format_version=3,
        **{
            "content": DataFileContent.DATA,
            "file_path": path,
            "file_format": FileFormat.PARQUET,
            "partition": Record(*partition),
            "record_count": count,
            "file_size_in_bytes": 100,
            **more,
        },
    )
    file.spec_id = spec
    return file


FIELD = {f.name: place for place, f in enumerate(DATA_FILE_TYPE[3].fields)}


def rows(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> list[tuple[Any, ...]]:
    """All rows as PyIceberg reads them, sorted."""
    actual = lake.pyiceberg.load_table(name).scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in actual), key=repr)


def manifests(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> list[ManifestFile]:
    """Manifests of the current snapshot as PyIceberg reads them."""
    table = lake.pyiceberg.load_table(name)
    snapshot = table.current_snapshot()
    return [] if snapshot is None else snapshot.manifests(table.io)


def live(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> list[DataFile]:
    """Data files of the current snapshot as PyIceberg reads them, by path."""
    io = lake.pyiceberg.load_table(name).io
    actual = [
        entry.data_file
        for manifest in manifests(lake, name)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    ]
    return sorted(actual, key=lambda file: file.file_path)


def live_deletes(io: FileIO, metadata: Metadata) -> list[DataFile]:
    """Delete files of the current snapshot."""
    return [item.data_file for item in live_entries(io, metadata, ManifestContent.DELETES)]


def home(lake: IcebergCatalog, name: tuple[str, str] = NAME) -> Path:
    """The folder of a table."""
    path = local_path(load(lake, name).metadata["location"])
    assert path is not None
    return path


def files(folder: Path) -> set[Path]:
    """All files below a folder, but hidden ones."""
    return {path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}
