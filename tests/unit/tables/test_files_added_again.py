"""Another writer removes a data file and adds it again while a write has read it.

Its deletes are then older than the file, and do not apply any more (spec, "Scan Planning").
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change, append
from dbt.adapters.iceberg_stream.tables.commit.committer import Committed, Committer
from dbt.adapters.iceberg_stream.tables.compaction.deleted_rows import rewrite_deleted_rows
from dbt.adapters.iceberg_stream.tables.compaction.small_files import (
    MERGED_FILES,
    merge_small_files,
)
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.deletes import (
    write_equality_deletes,
    write_position_deletes,
)
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from tests.integration.tables import duckdb_rows
from tests.unit.local_tables import (
    NAME,
    commit,
    insert,
    load,
    make_catalog,
    make_table,
    rows,
    write,
)

ROWS = list(enumerate("abcdef", 1))
MERGED = [(key, "new" if key == 3 else value) for key, value in ROWS]
Write = Callable[[IcebergCatalog], object]


def merge(mode: str) -> Write:
    def run(lake: IcebergCatalog) -> None:
        source = Source(pa.table({"id": [3], "x": ["new"]}), ("id",))
        plan = MergePlan(("id",), ("x",), True)
        RewriteMerge(lake, NAME, source, plan, lambda _: None, "w", {}, mode=mode).run(load(lake))

    return run


def convert(lake: IcebergCatalog) -> None:
    convert_equality_deletes(lake, NAME, {})


def rewrite(lake: IcebergCatalog) -> None:
    rewrite_deleted_rows(lake, NAME, {})


def merge_small(lake: IcebergCatalog) -> None:
    merge_small_files(lake, NAME, {})


@pytest.mark.parametrize(
    ("write_rows", "version", "by_key"),
    [
        (merge("copy-on-write"), 2, True),
        (merge("copy-on-write"), 2, False),
        (merge("merge-on-read"), 2, True),
        (merge("merge-on-read"), 2, False),
        (convert, 2, True),
        (convert, 3, True),
        (rewrite, 2, False),
        (merge_small, 2, False),
    ],
)
def test_no_row_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_rows: Write,
    version: int,
    by_key: bool,
) -> None:
    lake = make_catalog(tmp_path)
    make_table(lake, version)
    table = pa.table({"id": [key for key, _ in ROWS], "x": [value for _, value in ROWS]})
    (file,) = write(lake, table)
    commit(lake, append(file, properties={}))
    target = WriteTarget.of(load(lake).metadata, load(lake).io)
    delete = (
        write_equality_deletes(target, "deletes", pa.table({"id": [1, 2]}))
        if by_key
        else write_position_deletes(target, "deletes", {file.file_path: [0, 1, 2]})
    )
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(delete,)),)))
    if write_rows is merge_small:
        for number in range(MERGED_FILES):
            insert(lake, pa.table({"id": [100 + number] * 6, "x": list("abcdef")}))
    real, calls = Committer.commit, iter([True])

    def add_again_first(self: Committer) -> Committed:
        if next(calls, False):
            commit(lake, Change(Operation.DELETE, removed=(file,)))
            commit(lake, append(file, properties={}))
        return real(self)

    monkeypatch.setattr(Committer, "commit", add_again_first)
    write_rows(lake)
    # DuckDB takes the older deletes by position for valid, and PyIceberg reads no equality deletes.
    found = duckdb_rows(lake, NAME[1]) if by_key else rows(lake)
    keeps_rows = write_rows in (convert, rewrite, merge_small)
    assert [row for row in found if row[0] < 100] == (ROWS if keeps_rows else MERGED)
