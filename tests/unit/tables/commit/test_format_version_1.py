"""Commits to tables of format version 1, which has neither sequence numbers nor delete files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from tests.unit.local_tables import (
    NAME,
    commit,
    data_file,
    insert,
    live,
    load,
    make_table,
    manifests,
    replace,
    rewrite,
    rows,
    write,
)

A, B, C = (pa.table({"id": [n], "x": [text]}) for n, text in ((1, "a"), (2, "b"), (3, "c")))


def avro_fields(io: FileIO, path: str) -> dict[int, Any]:
    with AvroFile(io.new_input(path)) as reader:
        return {field.field_id: field for field in reader.schema.fields}


def test_snapshots_have_no_sequence_number(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    for batch in (A, B):
        insert(lake, batch)
    metadata = load(lake).metadata
    assert "last-sequence-number" not in metadata
    assert all("sequence-number" not in s for s in metadata["snapshots"])
    parsed = lake.pyiceberg.load_table(NAME)
    assert [s.sequence_number for s in parsed.snapshots()] == [0, 0]
    assert rows(lake) == [(1, "a"), (2, "b")]


def test_several_sets_of_files_have_no_numbers_either(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    added = tuple(AddedFiles(tuple(write(lake, batch))) for batch in (A, B, C))
    commit(lake, Change(Operation.APPEND, added))
    assert rows(lake) == [(1, "a"), (2, "b"), (3, "c")]
    assert [m.sequence_number for m in manifests(lake)] == [0]


def test_manifests_are_those_of_version_1(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    insert(lake, A)
    table = lake.pyiceberg.load_table(NAME)
    listed = avro_fields(table.io, table.current_snapshot().manifest_list)
    # Neither content nor sequence numbers.
    assert {515, 516, 517, 520}.isdisjoint(listed)
    (manifest,) = manifests(lake)
    entry = avro_fields(table.io, manifest.manifest_path)
    assert set(entry) == {0, 1, 2}
    assert entry[1].required
    assert {f.field_id for f in entry[2].field_type.fields}.isdisjoint({134, 135, 142, 143})


def test_files_are_replaced_and_removed(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    insert(lake, A)
    insert(lake, B)
    old = [file for file in live(lake) if file.lower_bounds[1] == (2).to_bytes(8, "little")]
    rewrite(lake, old, C)
    assert rows(lake) == [(1, "a"), (3, "c")]
    replace(lake, B)
    assert rows(lake) == [(2, "b")]
    assert all("sequence-number" not in s for s in load(lake).metadata["snapshots"])


def test_delete_files_are_refused(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    deletes = data_file("d.parquet", content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])
    with pytest.raises(CatalogError, match=r"format version 1, .*`format_version: 2`"):
        commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(deletes,)),)))
    assert manifests(lake) == []


def test_a_stream_with_keys_is_refused_before_it_writes(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    with pytest.raises(StreamError, match=r"format version 1, .*`format_version: 2`"):
        Sink(lake, NAME, Progress("sink"), ("id",)).claim()
    assert not any("sink" in key for key in load(lake).metadata["properties"])


def test_numbers_begin_after_an_upgrade(lake: IcebergCatalog) -> None:
    make_table(lake, version=1)
    insert(lake, A)
    with lake.pyiceberg.load_table(NAME).transaction() as transaction:
        transaction.upgrade_table_version(2)
    insert(lake, B)
    assert [s.sequence_number for s in lake.pyiceberg.load_table(NAME).snapshots()] == [0, 1]
    assert sorted(m.sequence_number for m in manifests(lake)) == [0, 1]
    older = next(file for file in live(lake) if file.upper_bounds[2] == b"a")
    rewrite(lake, [older], C)
    assert rows(lake) == [(2, "b"), (3, "c")]
    assert sorted(m.sequence_number for m in manifests(lake)) == [1, 2, 2]
