"""A key whose type is widened while equality deletes have the narrow one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent, ManifestEntry

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitConflict
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.stream.row_deltas.changes import DELETED, ORDER, PARTITION
from dbt.adapters.iceberg_stream.stream.row_deltas.row_delta import write_changes
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink import widened_keys
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_entries
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError
from tests.integration.tables import duckdb_rows

NARROW = pa.schema([("id", pa.int32()), ("value", pa.string())])
WIDE = pa.schema([("id", pa.int64()), ("value", pa.string())])
FILE_FORMAT = 2
ROWS = [(1, "b"), (3, "c"), (4, "a"), (5, "a")]


def apply(
    sink: Sink, schema: pa.Schema, upper: int, changes: Sequence[tuple[int, str | None]]
) -> None:
    """Upserts, and deletes of keys whose value is None, as one commit."""
    kind, count = schema.field("id").type, len(changes)
    columns: dict[str, Any] = {
        "id": pa.array([key for key, _ in changes], kind),
        "value": pa.array([value for _, value in changes], pa.string()),
        f"{ORDER}0": pa.array(range(count), pa.int64()),
        DELETED: pa.array([value is None for _, value in changes]),
    }
    if len(sink.table().metadata["partition-specs"][0]["fields"]):
        parts = [{"f0": key} for key, _ in changes]
        columns[PARTITION] = pa.array(parts, pa.struct([("f0", kind)]))
    write_id = uuid.uuid4().hex
    delta = write_changes(sink.plan(write_id, chunk_bytes=1), pa.table(columns).to_batches())
    sink.commit(write_id, [WrittenBatch(BatchRange(None, {"offset": upper}), [delta])])


def loaded(lake: IcebergCatalog, name: str) -> LoadedTable:
    base = lake.load(("s", name))
    assert base is not None
    return base


def equality_deletes(lake: IcebergCatalog, name: str) -> list[ManifestEntry]:
    base = loaded(lake, name)
    return live_entries(
        base.io,
        base.metadata,
        ManifestContent.DELETES,
        test=lambda item: item.data_file.content == DataFileContent.EQUALITY_DELETES,
    )


def numbers(entries: Sequence[ManifestEntry]) -> list[tuple[int | None, int]]:
    """Data sequence numbers, and how many keys each file has."""
    return sorted((item.sequence_number or 0, item.data_file.record_count) for item in entries)


def folder(lake: IcebergCatalog, name: str) -> set[str]:
    location = str(loaded(lake, name).metadata["location"]).removeprefix("file://")
    return {str(path) for path in Path(location).rglob("*") if path.is_file()}


def spark_rows(spark: Session, name: str) -> list[tuple[Any, ...]]:
    return sorted(as_rows(spark.query(f"select * from lake.s.{name}")))


@pytest.fixture(params=["unpartitioned", "partitioned by (id)"])
def stream(
    request: pytest.FixtureRequest, lake: IcebergCatalog, spark: Session
) -> tuple[Sink, str]:
    """A stream that has deleted keys in two commits, and its table, which Spark has read."""
    name = f"t{uuid.uuid4().hex[:8]}"
    partitions = "" if request.param == "unpartitioned" else request.param
    spark.run(
        f"create table lake.s.{name} (id int, value string) using iceberg {partitions} "
        "tblproperties ('format-version' = '2')"
    )
    sink = Sink(lake, ("s", name), Progress("model.shop.t"), ("id",))
    sink.claim(NARROW)
    apply(sink, NARROW, 1, [(n, "a") for n in range(6)])
    apply(sink, NARROW, 2, [(0, None), (1, "b")])
    apply(sink, NARROW, 3, [(2, None), (3, "c")])
    assert spark_rows(spark, name) == ROWS
    return sink, name


def test_deleted_rows_stay_deleted(
    lake: IcebergCatalog, spark: Session, stream: tuple[Sink, str]
) -> None:
    sink, name = stream
    before = equality_deletes(lake, name)
    sink.claim(WIDE)
    spark.run(f"refresh table lake.s.{name}")
    assert spark_rows(spark, name) == ROWS
    assert duckdb_rows(lake, name) == ROWS
    assert numbers(equality_deletes(lake, name)) == numbers(before)
    findings = check_table(loaded(lake, name), data=True).findings
    assert [one for one in findings if one.severity != "note"] == []
    apply(sink, WIDE, 4, [(1, None), (1 << 40, "wide")])
    spark.run(f"refresh table lake.s.{name}")
    expected = [*ROWS[1:], (1 << 40, "wide")]
    assert spark_rows(spark, name) == expected
    assert duckdb_rows(lake, name) == expected
    spark.run(
        f"call lake.system.rewrite_data_files(table => 's.{name}', "
        "options => map('rewrite-all', 'true'))"
    )
    assert spark_rows(spark, name) == expected


def test_the_stream_goes_on_from_there(lake: IcebergCatalog, stream: tuple[Sink, str]) -> None:
    sink, name = stream
    sink.claim(WIDE)
    again = Sink(lake, ("s", name), Progress("model.shop.t"), ("id",))
    again.claim(WIDE)
    assert again.progress.frontier == {"offset": 3}
    summary = loaded(lake, name).metadata["snapshots"][-1]["summary"]
    assert summary["operation"] == "replace"
    assert (
        summary["total-records"]
        == loaded(lake, name).metadata["snapshots"][-2]["summary"]["total-records"]
    )


def test_a_commit_in_between(
    lake: IcebergCatalog, stream: tuple[Sink, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, name = stream
    commit_all, calls = lake.commit_all, []

    def conflicting(parts: Sequence[TableCommit]) -> None:
        calls.append(len(parts))
        if len(calls) == 1:
            lake.commit(loaded(lake, name), (), ())
            raise CommitConflict("somebody was faster")
        commit_all(parts)

    files = folder(lake, name)
    monkeypatch.setattr(lake, "commit_all", conflicting)
    sink.claim(WIDE)
    assert duckdb_rows(lake, name) == ROWS
    # Nothing is left of the first attempt.
    entries = equality_deletes(lake, name)
    made = {item.data_file.file_path.removeprefix("file://") for item in entries}
    new = {path for path in folder(lake, name) - files if "/data/" in path}
    assert new == made


def test_a_commit_that_is_refused(
    lake: IcebergCatalog, stream: tuple[Sink, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, name = stream
    files = folder(lake, name)

    def refused(_: Sequence[TableCommit]) -> None:
        raise CatalogError("no")

    monkeypatch.setattr(lake, "commit_all", refused)
    with pytest.raises(CatalogError, match="no"):
        sink.claim(WIDE)
    assert folder(lake, name) == files
    assert duckdb_rows(lake, name) == ROWS


def test_a_disk_that_is_full(
    lake: IcebergCatalog, stream: tuple[Sink, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, name = stream
    files, conform, calls = folder(lake, name), widened_keys.conform, []

    def full(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return conform(*arguments)

    monkeypatch.setattr(widened_keys, "conform", full)
    with pytest.raises(OSError, match="No space left"):
        sink.claim(WIDE)
    assert folder(lake, name) == files
    assert duckdb_rows(lake, name) == ROWS


def test_deletes_that_cannot_be_written_again(
    lake: IcebergCatalog, stream: tuple[Sink, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, name = stream
    entries = equality_deletes(lake, name)
    for item in entries:
        item.data_file[FILE_FORMAT] = FileFormat.AVRO
    monkeypatch.setattr(widened_keys, "live_entries", lambda *_, **__: entries)
    with pytest.raises(ColumnError, match=r"(?s)`id`.*in AVRO\. Compact the table"):
        sink.claim(WIDE)
