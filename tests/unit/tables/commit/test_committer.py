"""Commits beside other writers: what is made again, what is refused, what stays of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.errors import ValidationFailed
from tests.unit.local_tables import (
    NAME,
    SCHEMA,
    data_file,
    evolve,
    insert,
    live,
    load,
    make_table,
    manifests,
    replace,
    rows,
    set_metadata,
    write,
)

A, B, C = (pa.table({"id": [n], "x": [text]}) for n, text in ((1, "a"), (2, "b"), (3, "c")))
SETTINGS = {"min-snapshots-to-keep": 7, "max-snapshot-age-ms": 86_400_000}


def parquet(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


def avro(folder: Path) -> int:
    return len(list(folder.rglob("*.avro")))


@pytest.mark.parametrize("settings", [{}, SETTINGS, {"max-ref-age-ms": 5}])
def test_settings_of_the_branch_stay(lake: IcebergCatalog, settings: dict[str, Any]) -> None:
    make_table(lake)
    made = insert(lake, A).snapshot.snapshot_id
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": made, **settings}
    lake.commit(load(lake), (), (SetSnapshotRefUpdate.model_validate(reference),))
    result = insert(lake, B).snapshot.snapshot_id
    actual = load(lake).metadata["refs"]["main"]
    assert actual == {"snapshot-id": result, "type": "branch", **settings}


def test_an_append_goes_behind_that_of_another_writer(lake: IcebergCatalog, tmp_path: Path) -> None:
    base = make_table(lake)
    ours = append(*write(lake, A), properties={"k": "v"})
    insert(lake, B)
    result = Committer(lake, NAME, ours, base).commit()
    assert result.attempts == 2
    assert rows(lake) == [(1, "a"), (2, "b")]
    assert [m.sequence_number for m in manifests(lake)] == [2, 1]
    newest = lake.pyiceberg.load_table(NAME).current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    assert (newest.snapshot_id, newest.summary["k"]) == (result.snapshot.snapshot_id, "v")
    assert newest.summary["total-records"] == "2"
    # A manifest and a list of each commit; that of the lost attempt is gone.
    assert avro(tmp_path) == 4


def test_a_file_that_another_writer_has_replaced(lake: IcebergCatalog, tmp_path: Path) -> None:
    make_table(lake)
    insert(lake, A)
    base, (old,) = load(lake), live(lake)
    made = write(lake, B)
    theirs = Change(Operation.OVERWRITE, (AddedFiles(tuple(write(lake, C))),), removed=(old,))
    Committer(lake, NAME, theirs, base).commit()
    before = avro(tmp_path)
    ours = Change(Operation.OVERWRITE, (AddedFiles(tuple(made)),), removed=(old,))
    with pytest.raises(ValidationFailed, match="removed or rewrote 1 of the files") as raised:
        Committer(lake, NAME, ours, base).commit()
    assert raised.value.removed == {old.file_path}
    assert rows(lake) == [(3, "c")]
    # Its maker may use the data files again; metadata of attempts are gone.
    assert parquet(tmp_path) == 3
    assert avro(tmp_path) == before


def test_position_deletes_of_a_table_that_was_upgraded(lake: IcebergCatalog) -> None:
    """Format version 3 has deletion vectors only (spec, "Position Delete Files")."""
    make_table(lake, 2)
    insert(lake, A)
    base = load(lake)
    deletes = data_file("x", content=DataFileContent.POSITION_DELETES)
    set_metadata(lake, format_version=3, next_row_id=0)
    insert(lake, B)
    change = Change(Operation.DELETE, (AddedFiles(deletes=(deletes,)),))
    with pytest.raises(CatalogError, match="upgraded to format version 3 while this write ran"):
        Committer(lake, NAME, change, base).commit()
    assert rows(lake) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("total", [None, "17"])
def test_totals_after_a_replacement(lake: IcebergCatalog, total: str | None) -> None:
    """Whatever the snapshot before says of itself."""
    make_table(lake)
    insert(lake, A)
    (snapshot,) = load(lake).metadata["snapshots"]
    summary = {k: v for k, v in snapshot["summary"].items() if k != "total-records"}
    summary |= {} if total is None else {"total-records": total}
    set_metadata(lake, snapshots=[{**snapshot, "summary": summary}])
    replace(lake, pa.concat_tables([B, C]))
    newest = load(lake).metadata["snapshots"][-1]["summary"]
    assert (newest["total-records"], newest["total-data-files"]) == ("2", "1")
    assert (newest["total-delete-files"], newest["total-equality-deletes"]) == ("0", "0")


def test_a_table_that_was_dropped(lake: IcebergCatalog, tmp_path: Path) -> None:
    base = make_table(lake)
    ours = append(*write(lake, A), properties={})
    insert(lake, B)
    lake.pyiceberg.drop_table(NAME)
    with pytest.raises(CatalogError, match="s.t was dropped while this write ran"):
        Committer(lake, NAME, ours, base).commit()
    assert parquet(tmp_path) == 1


def test_a_table_that_was_made_anew(lake: IcebergCatalog, tmp_path: Path) -> None:
    base = make_table(lake)
    ours = append(*write(lake, A), properties={})
    lake.pyiceberg.drop_table(NAME)
    make_table(lake)
    with pytest.raises(CatalogError, match="dropped and created again"):
        Committer(lake, NAME, ours, base).commit()
    assert parquet(tmp_path) == 0
    assert rows(lake) == []


@pytest.mark.parametrize("required", [True, False])
def test_columns_that_are_new(lake: IcebergCatalog, required: bool) -> None:
    base = make_table(lake)
    ours = append(*write(lake, A), properties={})
    new = NestedField(3, "n", LongType(), required=required)
    evolve(lake, Schema(*SCHEMA.fields, new, schema_id=1))
    if required:
        with pytest.raises(CatalogError, match="now requires the column `n`"):
            Committer(lake, NAME, ours, base).commit()
        assert rows(lake) == []
    else:
        Committer(lake, NAME, ours, base).commit()
        assert rows(lake) == [(1, "a", None)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_sets_of_files_have_numbers_in_their_order(
    lake: IcebergCatalog, count: int
) -> None:
    make_table(lake)
    sets = tuple(AddedFiles(tuple(write(lake, batch))) for batch in (A, B, C)[:count])
    Committer(lake, NAME, Change(Operation.APPEND, sets), load(lake)).commit()
    io = lake.pyiceberg.load_table(NAME).io
    actual = {
        entry.data_file.file_path: entry.sequence_number
        for manifest in manifests(lake)
        for entry in manifest.fetch_manifest_entry(io)
    }
    assert [actual[one.data[0].file_path] for one in sets] == [1, 2, 3][:count]
    assert load(lake).metadata["last-sequence-number"] == count


def test_rows_that_are_not_new_keep_their_number(lake: IcebergCatalog) -> None:
    make_table(lake)
    insert(lake, A)
    insert(lake, B)
    old = next(file for file in live(lake) if file.upper_bounds[2] == b"a")
    made = (AddedFiles(tuple(write(lake, A)), sequence_number=1),)
    Committer(lake, NAME, Change(Operation.REPLACE, made, removed=(old,)), load(lake)).commit()
    io = lake.pyiceberg.load_table(NAME).io
    actual = [
        (entry.sequence_number, entry.file_sequence_number)
        for manifest in manifests(lake)
        for entry in manifest.fetch_manifest_entry(io)
        if entry.status == 1
    ]
    assert (1, 3) in actual
    assert rows(lake) == [(1, "a"), (2, "b")]
