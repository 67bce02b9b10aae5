"""Deletes that others have left in a table, and those that a stream must not leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import UpgradeFormatVersionUpdate

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.batches import runners
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import TargetDeletes, WrittenBatch
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sink.sink_commit import SinkCommit
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, append
from dbt.adapters.iceberg_stream.tables.commit.change import Change as TableChange
from dbt.adapters.iceberg_stream.tables.commit.producer import current_snapshot_id
from dbt.adapters.iceberg_stream.tables.files.deletes import write_position_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.stream_bed import Bed
from tests.integration.streams import Change, make_table, open_sink
from tests.integration.streams import write as write_batch
from tests.integration.tables import LATER, duckdb_rows, write
from tests.unit.local_tables import FIELD, commit, load, make_catalog


def changed(*keys: int, b: int = 0) -> list[dict[str, Any]]:
    return [{"id": key, "a": "x", "b": b, "at": 0, "op": "u"} for key in keys]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"delete_encoding": "position", "max_indexed_rows": 1}, {"delete_encoding": "equality"}],
    ids=["index", "query", "equality"],
)
def test_a_file_that_is_added_again(
    lake: IcebergCatalog, spark: Session, tmp_path: Path, version: int, options: dict[str, Any]
) -> None:
    """Its former deletes are still in the table, but older, so that all of its rows live."""
    layout = (
        f"tblproperties ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    made = Bed(lake, spark, tmp_path / "landing", runners.in_process, options, layout=layout)
    name = f"s.{made.name}"
    spark.run(f"insert into {name} values (100, 'x', 0, 0)")
    spark.run(f"insert into {name} select id, 'x', 0, 0 from range(1, 5, 1, 1)")
    ((path,),) = as_rows(spark.query(f"select distinct _file from {name} where id = 1"))
    spark.run(f"delete from {name} where id in (1, 2)")
    spark.run(f"delete from {name} where id < 100")
    source = f"`parquet`.`{path.removeprefix('file:')}`"
    spark.run(f"call lake.system.add_files(table => '{name}', source_table => '{source}')")
    made.land(changed(1, 3, b=7))
    made.drain()
    assert made.rows("id, b") == [(1, 7), (2, 0), (3, 7), (4, 0), (100, 0)]


@pytest.fixture
def alone(tmp_path: Path) -> IcebergCatalog:
    """A catalog with the data file of rows 1 to 4; no engine runs."""
    return make_catalog(tmp_path)


def fill(lake: IcebergCatalog, version: int) -> DataFile:
    make_table(lake, version)
    rows = pa.table({"id": [1, 2, 3, 4], "part": ["a"] * 4, "value": ["other"] * 4})
    (file,) = write(lake, "t", *rows.to_batches())
    commit(lake, append(file, properties={}))
    return file


def located(sink: Sink, path: str) -> tuple[str, WrittenBatch]:
    """A batch with a dead row of its own, which deletes the third row of a file."""
    changes = [Change(3, "x"), Change(3, "y")]
    write_id, batch = write_batch(sink, changes, 1, max_keys=1 << 62, rows=1)
    deletes = TargetDeletes(current_snapshot_id(sink.table().metadata), {path: pa.array([2])})
    by_position = batch.by_position(deletes)
    sink.remove(sorted({*batch.files} - {*by_position.files}))
    return write_id, by_position


def test_a_commit_that_cannot_be_prepared(alone: IcebergCatalog) -> None:
    file = fill(alone, 3)
    target = WriteTarget.of(load(alone).metadata, load(alone).io)
    delete = write_position_deletes(target, "foreign", {file.file_path: [0]})
    delete[FIELD["file_format"]] = FileFormat.ORC
    commit(alone, TableChange(Operation.DELETE, (AddedFiles(deletes=(delete,)),)))
    sink = open_sink(alone)
    write_id, batch = located(sink, file.file_path)
    with pytest.raises(StreamError, match="has position deletes in ORC"):
        sink.commit(write_id, [batch])
    assert unreferenced_files(load(alone), LATER) == []


def test_an_upgrade_between_the_files_and_their_commit(
    alone: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fill(alone, 2)
    sink, prepare = open_sink(alone), Sink.prepare
    attempts = []

    def prepare_and_upgrade(self: Sink, *arguments: Any) -> SinkCommit | None:
        prepared = prepare(self, *arguments)
        if not attempts:
            upgrade = UpgradeFormatVersionUpdate.model_validate({"format-version": 3})
            alone.commit(load(alone), (), (upgrade,))
        attempts.append(prepared)
        return prepared

    monkeypatch.setattr(Sink, "prepare", prepare_and_upgrade)
    write_id, batch = located(sink, file.file_path)
    sink.commit(write_id, [batch])
    assert len(attempts) == 2
    rows = [(key, "a", "other") for key in (1, 2, 4)]
    assert sorted(row for row in duckdb_rows(alone, "t") if row[0] != 3) == rows
    assert [row[2] for row in duckdb_rows(alone, "t") if row[0] == 3] == ["y"]
    assert unreferenced_files(load(alone), LATER) == []
