"""Writes to the table of a compaction, before it and meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.deletes.snapshot_files import deleted_rows, snapshot_files
from dbt.adapters.iceberg_stream.tables.files.deletes import write_equality_deletes
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import commit, insert, load


def append(lake: IcebergCatalog, *ids: int) -> None:
    insert(lake, pa.table({"id": pa.array(ids, pa.int64()), "x": [f"x{n}" for n in ids]}))


def delete(lake: IcebergCatalog, file_number: int, *positions: int) -> None:
    base = load(lake)
    # Names of files do not always sort as they were written.
    files = sorted(snapshot_files(base).values(), key=lambda i: (i.sequence_number or 0, i.path))
    item = files[file_number]
    gone = deleted_rows(base, [item])[item.path] | BitMap(positions)
    target = WriteTarget.of(base.metadata, base.io)
    vectors = base.metadata["format-version"] == 3
    name = f"d{file_number}{positions}"
    new = write_deletes_by_position(target, vectors, name, [(item.file, gone)])
    added = (AddedFiles(deletes=tuple(new.values())),)
    commit(lake, Change(Operation.DELETE, added, removed=tuple(item.own_deletes)))


class Rival:
    """Another writer, who commits once just before the merge does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> None:
        self.has_written = False
        original = Committer.commit

        def commit_later(committer: Committer) -> Any:
            if not self.has_written and committer.change.merges_manifests:
                self.has_written = True
                write()
            return original(committer)

        monkeypatch.setattr(Committer, "commit", commit_later)


def delete_keys(lake: IcebergCatalog, *ids: int) -> None:
    """Commit an equality delete."""
    base = load(lake)
    keys = pa.table({"id": pa.array(ids, pa.int64())})
    file = write_equality_deletes(WriteTarget.of(base.metadata, base.io), f"equality{ids}", keys)
    commit(lake, Change(Operation.DELETE, (AddedFiles(deletes=(file,)),)))
