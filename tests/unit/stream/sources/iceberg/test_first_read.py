"""Where the first read of a table is cut, and whether it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import ListType, LongType, NestedField, StructType, UUIDType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.iceberg import source as module
from dbt.adapters.iceberg_stream.stream.sources.iceberg.changes import SnapshotChanges
from dbt.adapters.iceberg_stream.stream.sources.iceberg.first_read import plan_first_read
from dbt.adapters.iceberg_stream.stream.sources.iceberg.source import IcebergSource
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.unit.local_tables import NAME, commit, evolve, insert, live, load, make_table, write

ID = NestedField(1, "id", LongType(), required=False)


class LocalFrame:
    """Reads what Spark's tasks would read, as ids in the order of their changes."""

    def __init__(self, _: Any, __: str, table: LoadedTable) -> None:
        self.target = WriteTarget.of(table.metadata, table.io)

    def of(self, planned: Sequence[SnapshotChanges]) -> list[int]:
        pieces = [piece for changes in planned for piece in changes.pieces]
        ids = []
        for piece in sorted(pieces, key=lambda piece: (piece.major, piece.minor)):
            with self.target.filesystem().open_input_file(
                self.target.path_of(piece.location)
            ) as file:
                table = pq.read_table(file)
            ids += table["id"].to_pylist()[piece.begin : piece.end]
        return ids


@pytest.fixture(autouse=True)
def local_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ChangesFrame", LocalFrame)


def source(lake: IcebergCatalog, keyed: bool = False) -> IcebergSource:
    return IcebergSource(lake, NAME, "`lake`.`s`.`t`", keyed=keyed)


def read(
    lake: IcebergCatalog, lower: Frontier | None, rows: int, keyed: bool = False
) -> tuple[Frontier, list[int]]:
    """The next batch of another run of a stream."""
    own = source(lake, keyed)
    upper = own.plan_batch(lower, rows)
    assert upper is not None
    # Progress is kept as JSON.
    return json.loads(json.dumps(upper)), own.read(None, lower, upper)  # type: ignore[arg-type,return-value]


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def make_history(lake: IcebergCatalog, version: int, *parts: pa.Table) -> None:
    make_table(lake, version, Schema(ID))
    for part in parts:
        insert(lake, part)


def compact_first(lake: IcebergCatalog) -> None:
    """Rewrite the first file, as Iceberg does it: under the number of the current snapshot."""
    (old,) = [file for file in live(lake) if file.record_count == 3]
    number = load(lake).metadata["last-sequence-number"]
    added = AddedFiles(tuple(write(lake, ids(1, 2, 3))), sequence_number=number)
    commit(lake, Change(Operation.REPLACE, (added,), removed=(old,)))


def expire(lake: IcebergCatalog) -> None:
    """Remove all snapshots but the current one."""
    base = load(lake)
    *old, _ = base.metadata["snapshots"]
    numbers = [snapshot["snapshot-id"] for snapshot in old]
    lake.commit(base, (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": numbers}),))


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("compacts", [False, True])
def test_each_row_once_after_an_expiry(lake: IcebergCatalog, version: int, compacts: bool) -> None:
    make_history(lake, version, ids(1, 2, 3), ids(4, 5), ids(6, 7))
    if compacts and version > 1:
        compact_first(lake)
    frontier, rows = read(lake, None, 4)
    expire(lake)
    frontier, more = read(lake, frontier, 9)
    assert sorted(rows + more) == [1, 2, 3, 4, 5, 6, 7]
    assert source(lake).plan_batch(frontier, 9) is None


def test_the_order_that_was_known_stays_known(lake: IcebergCatalog) -> None:
    make_history(lake, 2, ids(1, 2, 3), ids(4, 5), ids(6, 7))
    frontier, rows = read(lake, None, 2, keyed=True)
    expire(lake)
    # The snapshots' files might have been rewritten for all that a new stream knows.
    upper = source(lake, keyed=True).plan_batch(None, 2)
    assert upper is not None and "rows" not in upper
    while "rows" in frontier:
        frontier, more = read(lake, frontier, 2, keyed=True)
        rows += more
    assert rows == [1, 2, 3, 4, 5, 6, 7]


def test_several_snapshots_of_format_version_1_have_no_order(lake: IcebergCatalog) -> None:
    make_history(lake, 1, ids(1, 2, 3))
    assert "rows" in read(lake, None, 2, keyed=True)[0]
    insert(lake, ids(4, 5))
    upper = source(lake, keyed=True).plan_batch(None, 2)
    assert upper is not None and "rows" not in upper


@pytest.mark.parametrize("keyed", [(False, True), (True, False), (True, True), (False, False)])
def test_one_decision_for_a_group(lake: IcebergCatalog, keyed: tuple[bool, bool]) -> None:
    make_history(lake, 2, ids(1, 2, 3), ids(4, 5))
    compact_first(lake)
    first, second = (source(lake, each) for each in keyed)
    first.share_reads(first)
    first.share_reads(second)
    upper = first.plan_batch(None, 2)
    assert upper is not None
    assert ("rows" in upper) != any(keyed)


def test_a_key_needs_an_order_from_the_beginning(lake: IcebergCatalog) -> None:
    make_history(lake, 2, ids(1, 2, 3), ids(4, 5))
    compact_first(lake)
    frontier, _ = read(lake, None, 2)
    message = r"s\.t began in several batches .* a `unique_key` needs.*--full-refresh"
    with pytest.raises(StreamError, match=message):
        source(lake, keyed=True).plan_batch(frontier, 2)
    # A new table of a commit group that has to catch up with the others.
    with pytest.raises(StreamError, match=message):
        source(lake, keyed=True).plan_batch(None, 2, until=frontier, whole=True)
    # What the message asks for is one batch.
    upper = source(lake, keyed=True).plan_batch(None, 2)
    assert upper is not None and "rows" not in upper


def test_a_new_table_catches_up_within_the_first_read(lake: IcebergCatalog) -> None:
    make_history(lake, 2, ids(1, 2, 3), ids(4, 5))
    frontier, rows = read(lake, None, 4)
    expire(lake)
    new = source(lake, keyed=True)
    upper = new.plan_batch(None, 9, until=frontier, whole=True)
    assert upper == frontier
    assert new.read(None, None, upper) == rows == [1, 2, 3, 4]  # type: ignore[arg-type,comparison-overlap]


def nested(*fields: NestedField) -> Schema:
    kind = ListType(3, StructType(*fields), element_required=False)
    return Schema(ID, NestedField(2, "nested", kind, required=False))


def field(number: int, name: str, doc: str | None = None) -> NestedField:
    return NestedField(number, name, LongType(), required=False, doc=doc)


@pytest.mark.parametrize(
    "now",
    [
        nested(field(4, "a", "documented")),
        nested(field(4, "renamed")),
        nested(field(4, "a"), field(5, "b")),
        nested(field(5, "a")),
        Schema(ID),
    ],
)
def test_nested_columns_that_have_changed(lake: IcebergCatalog, now: Schema) -> None:
    make_table(lake, 2, nested(field(4, "a")))
    evolve(lake, now.model_copy(update={"schema_id": 1}))
    insert(lake, ids(1, 2, 3))
    table = load(lake)
    assert plan_first_read(table, table.metadata["snapshots"][::-1]) is not None


def test_uuids_within_other_columns_are_for_spark(lake: IcebergCatalog) -> None:
    make_table(lake, 2, nested(NestedField(4, "a", UUIDType(), required=False)))
    insert(lake, ids(1, 2, 3))
    table = load(lake)
    assert plan_first_read(table, table.metadata["snapshots"]) is None
