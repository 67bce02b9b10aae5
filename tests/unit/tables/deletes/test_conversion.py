"""Random tables with equality deletes: what the specification says they delete, and conversions."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import IntegerType, LongType, NestedField
from tenacity import wait_none

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import CONVERSION, Metadata, keeps_rows
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.deletes import conversion, equality
from dbt.adapters.iceberg_stream.tables.deletes.conversion import (
    Conversion,
    FilesChanged,
    NotConvertible,
    convert_equality_deletes,
    rows_to_read,
    stage_conversion,
)
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import snapshot_files
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.tables import LATER
from tests.unit.delete_histories import DELETE_ZERO, SCHEMA, STEPS, ZERO, A, History, Key
from tests.unit.local_tables import (
    NAME,
    commit,
    data_file,
    evolve,
    insert,
    live_deletes,
    load,
    make_catalog,
    make_table,
    rows,
    write,
)


def convert(lake: IcebergCatalog) -> Conversion:
    return convert_equality_deletes(lake, NAME, {"by": "test"})


@pytest.mark.parametrize("version", [2, 3])
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=[("append", [ZERO]), DELETE_ZERO, ("append", [ZERO]), DELETE_ZERO])
@example(steps=[("append", [ZERO]), DELETE_ZERO, ("append", [ZERO])])
@example(steps=[("append", [ZERO]), ("upsert", [ZERO]), ("upsert", [ZERO])])
@example(steps=[("partition", None), ("append", [ZERO]), ("delete_in_partition", (("id",), [A]))])
def test_any_history(version: int, steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = History(make_catalog(Path(folder)), version)
        for step, argument in steps:
            getattr(history, step)(argument)
        history.convert(None)
        history.check()


@pytest.fixture(params=[2, 3])
def history(request: pytest.FixtureRequest, lake: IcebergCatalog) -> History:
    return History(lake, request.param)


def row(number: int, part: str | None = None) -> Key:
    return (number, part, None)


def test_result_and_what_stays(history: History) -> None:
    history.append([row(1), row(2), row(3)])
    history.append([row(1)])
    history.delete_everywhere((("id",), [row(1), row(2), row(9)]))
    history.append([row(4)])
    done = convert(history.lake)
    assert (done.delete_files, done.keys, done.rows) == (1, 3, 3)
    assert done.committed is not None
    assert done.committed.snapshot.properties["operation"] == "delete"
    assert done.committed.snapshot.properties["by"] == "test"
    # The file with all rows deleted is gone; that with a live row has the only delete file.
    files = snapshot_files(load(history.lake))
    assert sorted(item.file.record_count for item in files.values()) == [1, 3]
    (delete,) = live_deletes(load(history.lake).io, load(history.lake).metadata)
    assert delete.content == DataFileContent.POSITION_DELETES
    puffin = history.version == 3
    assert delete.file_format == (FileFormat.PUFFIN if puffin else FileFormat.PARQUET)
    history.check()


def test_nothing_to_convert(history: History) -> None:
    history.append([row(1)])
    before = load(history.lake).location
    assert convert(history.lake) == Conversion()
    assert load(history.lake).location == before
    with pytest.raises(CatalogError, match="There is no table s.other"):
        convert_equality_deletes(history.lake, ("s", "other"), {})


def test_each_file_is_opened_once(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        history.append([row(number), row(number)])
        history.delete_everywhere((("id",), [row(number - 1), row(number + 1)]))
    opened: list[str] = []
    read = equality.read_keys

    def counted(target: WriteTarget, schema: pa.Schema, location: str) -> Any:
        opened.append(location)
        return read(target, schema, location)

    monkeypatch.setattr(equality, "read_keys", counted)
    assert rows_to_read(load(history.lake)) == 24
    convert(history.lake)
    # Nothing can delete rows of the last data file, except the last deletes.
    assert len(opened) == len(set(opened)) == 12
    history.check()


def compact(history: History, number: int) -> None:
    """Rewrite a data file's live rows with its old sequence number, as Spark does."""
    base = load(history.lake)
    item = sorted(snapshot_files(base).values(), key=lambda i: i.file.record_count)[-1]
    target = WriteTarget.of(base.metadata, base.io)
    content = pq.ParquetFile(target.path_of(item.path)).read()
    files = tuple(write(history.lake, content))
    added = (AddedFiles(files, sequence_number=number),)
    commit(history.lake, Change(Operation.REPLACE, added, removed=(item.file,)))


class Rival:
    """Other writers, each of whom commits once during the conversion, after its look-ups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *writes: Callable[[], None]) -> None:
        self.pending = list(writes)
        original = Committer.prepare

        def prepare(committer: Committer) -> Any:
            if self.pending and CONVERSION in committer.change.properties:
                self.pending.pop(0)()
            return original(committer)

        monkeypatch.setattr(Committer, "prepare", prepare)


def test_another_writer_compacts_with_the_old_sequence_number(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.append([row(1), row(2), row(3)])
    history.delete_everywhere((("id",), [row(2)]))
    Rival(monkeypatch, lambda: compact(history, 1))
    assert convert(history.lake).rows == 1
    history.check()


def test_another_writer_deletes_appends_and_upserts(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.append([row(1), row(2), row(3)])
    history.delete_everywhere((("id",), [row(2)]))
    Rival(
        monkeypatch,
        lambda: history.delete_by_position(0),
        lambda: history.append([row(2)]),
        lambda: history.upsert([row(3)]),
    )
    assert convert(history.lake).delete_files == 1
    # The upsert's delete is newer than the conversion's look-ups: it stays for the next one.
    assert len(equality.equality_delete_files(load(history.lake))) == 1
    convert(history.lake)
    history.check()


def test_a_rollback_brings_rows_back(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    history.append([row(1), row(2)])
    before = dict(history.live)
    snapshot_id = load(history.lake).metadata["current-snapshot-id"]
    history.delete_everywhere((("id",), [row(2)]))

    def roll_back() -> None:
        reference = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        update = SetSnapshotRefUpdate.model_validate(reference)
        history.lake.commit(load(history.lake), (), (update,))
        history.live = before

    Rival(monkeypatch, roll_back)
    assert convert(history.lake) == Conversion()
    history.check()


def test_others_commit_all_the_time(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion._Converter.convert.retry, "wait", wait_none())
    history.append([row(2), *[row(3)] * 50])
    history.delete_everywhere((("id",), [row(2)]))
    # Twice in each attempt: when it commits, and when it looks at what has changed.
    numbers = range(1, 2 * conversion.ATTEMPTS + 1)
    Rival(monkeypatch, *[partial(history.delete_by_position, number) for number in numbers])
    with pytest.raises(FilesChanged, match=r"Other writers deleted rows, or rewrote files of s\.t"):
        convert(history.lake)
    assert not unreferenced_files(load(history.lake), LATER)
    convert(history.lake)
    history.check()


def test_a_key_column_that_was_dropped_and_one_of_its_name(history: History) -> None:
    history.append([row(1), row(2)])
    history.delete_everywhere((("id",), [row(2)]))
    new = NestedField(9, "id", LongType(), required=False)
    fields = [f for f in SCHEMA.fields if f.name != "id"]
    evolve(history.lake, schema=Schema(*fields, new, schema_id=1))
    assert convert(history.lake).rows == 1
    assert [r[0] for r in rows(history.lake)] == [0]


def test_a_key_column_that_was_widened(lake: IcebergCatalog) -> None:
    narrow = Schema(NestedField(1, "id", IntegerType(), required=False))
    make_table(lake, schema=narrow)
    insert(lake, pa.table({"id": pa.array([1, 2, None], pa.int32())}))
    base = load(lake)
    target = WriteTarget.of(base.metadata, base.io)
    keys = pa.table({"id": pa.array([2, None], pa.int32())})
    file = write_equality_deletes(target, "deletes", keys)
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(file,)),)))
    evolve(lake, schema=Schema(NestedField(1, "id", LongType(), required=False), schema_id=1))
    assert convert(lake).rows == 2
    assert rows(lake) == [(1,)]


def test_the_compaction_of_another_engine_notices(history: History) -> None:
    """Iceberg's RewriteFiles looks for new deletes in snapshots that are no `replace` themselves.

    It keeps the sequence number that the table had when it began, so that a row whose equality
    delete came later, and was converted meanwhile, would be back.
    """
    history.append([row(1), row(2)])
    history.delete_everywhere((("id",), [row(2)]))
    done = convert(history.lake)
    assert done.committed is not None
    assert done.committed.snapshot.operation == "delete"
    snapshot = load(history.lake).metadata["snapshots"][-1]
    # Our own readers of changes know that it changes no row.
    assert keeps_rows(snapshot)


def test_rows_to_read(history: History) -> None:
    history.append([row(1, "a"), row(2, "b"), row(3)])
    assert rows_to_read(load(history.lake)) == 0
    history.partition(None)
    history.append([row(1, "a"), row(2, "a")])
    history.append([row(2, "b")])
    history.delete_in_partition((("id",), [row(1, "a"), row(9, "a")]))
    history.append([row(2, "a")])
    # Neither other partitions nor newer rows.
    assert rows_to_read(load(history.lake)) == 2 + 2
    history.delete_everywhere((("id",), [row(3)]))
    assert rows_to_read(load(history.lake)) == 3 + 7
    convert(history.lake)
    assert rows_to_read(load(history.lake)) == 0


def test_a_commit_that_is_not_allowed(history: History) -> None:
    history.append([row(1), row(2)])
    history.delete_everywhere((("id",), [row(2)]))
    before = load(history.lake)

    def refuse(metadata: Metadata) -> None:
        assert metadata["current-snapshot-id"] == before.metadata["current-snapshot-id"]
        raise CatalogError("not allowed")

    with pytest.raises(CatalogError, match="not allowed"):
        convert_equality_deletes(history.lake, NAME, {}, refuse)
    assert load(history.lake).location == before.location
    assert not unreferenced_files(before, LATER)


def test_damaged_files(history: History) -> None:
    history.append([row(1), row(2)])
    history.delete_everywhere((("id",), [row(2)]))
    base = load(history.lake)
    (entry,) = equality.equality_delete_files(base)
    path = entry.data_file.file_path
    Path(WriteTarget.of(base.metadata, base.io).path_of(path)).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(OSError, match=re.escape(path)):
        convert(history.lake)


def test_files_that_cannot_be_read(history: History) -> None:
    history.append([row(1)])
    history.delete_everywhere((("id",), [row(1)]))
    (entry,) = equality.equality_delete_files(load(history.lake))
    avro = data_file(
        "s3://b/d.avro",
        content=DataFileContent.EQUALITY_DELETES,
        file_format=FileFormat.AVRO,
        equality_ids=[2],
    )
    commit(history.lake, Change(Operation.DELETE, (AddedFiles(deletes=(avro,)),)))
    with pytest.raises(
        NotConvertible, match="d.avro is a file in AVRO, not Parquet.*rewrite_data_files"
    ):
        convert(history.lake)
    assert entry.data_file.file_path in {
        item.data_file.file_path for item in equality.equality_delete_files(load(history.lake))
    }


def test_a_staged_conversion(history: History) -> None:
    """Readers of its id get the current rows; the table stays as it is."""
    history.append([row(1), row(2), row(3)])
    assert stage_conversion(history.lake, NAME, {}) is None
    history.delete_everywhere((("id",), [row(2)]))
    before = load(history.lake).metadata
    snapshot_id = stage_conversion(history.lake, NAME, {"by": "test"})
    after = load(history.lake).metadata
    assert after["refs"] == before["refs"]
    assert after["current-snapshot-id"] == before["current-snapshot-id"]
    assert len(equality.equality_delete_files(load(history.lake))) == 1
    scan = history.lake.pyiceberg.load_table(NAME).scan(snapshot_id=snapshot_id)
    assert scan.to_arrow()["id"].to_pylist() == [1, 3]
    # Another reader of the same version uses it again.
    assert stage_conversion(history.lake, NAME, {}) == snapshot_id
    history.upsert([row(3)])
    newer = stage_conversion(history.lake, NAME, {})
    assert newer not in (None, snapshot_id)
    scan = history.lake.pyiceberg.load_table(NAME).scan(snapshot_id=newer)
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, 3]
    assert not unreferenced_files(load(history.lake), LATER)
    history.convert()
    history.check()


def test_a_staged_conversion_before_a_new_column(history: History) -> None:
    """A reader of a snapshot's id gets the snapshot's columns."""
    history.append([row(1), row(2)])
    history.delete_everywhere((("id",), [row(2)]))
    older = stage_conversion(history.lake, NAME, {})
    fields = (*load_schema(history).fields, NestedField(9, "more", LongType(), required=False))
    evolve(history.lake, schema=Schema(*fields, schema_id=1))
    newer = stage_conversion(history.lake, NAME, {})
    assert newer not in (None, older)
    scan = history.lake.pyiceberg.load_table(NAME).scan(snapshot_id=newer)
    assert "more" in scan.to_arrow().column_names


def load_schema(history: History) -> Schema:
    return history.lake.pyiceberg.load_table(NAME).schema()


def test_a_staged_conversion_beside_other_writers(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.append([row(1), row(2), row(3)])
    history.delete_everywhere((("id",), [row(2)]))
    Rival(monkeypatch, lambda: history.append([row(5)]))
    snapshot_id = stage_conversion(history.lake, NAME, {})
    scan = history.lake.pyiceberg.load_table(NAME).scan(snapshot_id=snapshot_id)
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, 3, 5]
