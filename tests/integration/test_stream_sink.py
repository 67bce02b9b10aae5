"""A stream's sink against a plain dict that replays the same changes; read by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate
from pyiceberg.transforms import IdentityTransform

from dbt.adapters.iceberg_stream.catalog.lake import Lake
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteNames
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from tests.integration.streams import (
    NAME,
    SINK,
    Change,
    Truth,
    commit,
    make_table,
    open_sink,
    write,
)
from tests.integration.tables import duckdb_rows

BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=0)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    names = SqliteNames("lake", tmp_path)
    names.create_namespace("s")
    lake = Lake("lake", names)
    yield lake
    lake.close()


CHANGES = st.lists(
    st.builds(
        Change,
        # Not null: where an equality delete applies, DuckDB loses all rows whose key is null.
        key=st.integers(0, 6),
        value=st.one_of(st.none(), st.text("xyz", max_size=2)),
        part=st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=30,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batches=st.lists(CHANGES, min_size=1, max_size=4),
    version=st.sampled_from([2, 3]),
    rows=st.sampled_from([1, 4, 1000]),
    max_keys=st.sampled_from([0, 3, 1000]),
    partitioned=st.booleans(),
    together=st.booleans(),
)
def test_the_table_is_the_truth(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[Change]],
    version: int,
    rows: int,
    max_keys: int,
    partitioned: bool,
    together: bool,
) -> None:
    names = SqliteNames("lake", tmp_path_factory.mktemp("truth"))
    names.create_namespace("s")
    lake, truth = Lake("lake", names), Truth()
    make_table(lake, version, BY_PART if partitioned else PartitionSpec())
    sink = open_sink(lake)
    written = []
    for number, changes in enumerate(batches):
        truth.apply(changes)
        options = {"rows": rows, "max_keys": max_keys, "partitioned": partitioned}
        write_id, one = write(sink, changes, number, **options)
        written.append(one)
        if not together:
            sink.commit(write_id, [one])
    if together:
        sink.commit(write_id, written)
    assert duckdb_rows(lake, "t") == truth.sorted()


def test_one_commit_of_many_sub_batches(lake: Lake) -> None:
    make_table(lake)
    sink = open_sink(lake)
    changes = [Change(1, str(number)) for number in range(10)]
    done = commit(sink, changes, 10, rows=1)
    assert done is not None
    assert duckdb_rows(lake, "t") == [(1, "a", "9")]
    table = lake.load(NAME)
    assert table is not None
    (snapshot,) = table.metadata["snapshots"]
    assert snapshot["sequence-number"] == 10
    manifests = table_manifests(lake)
    assert [(m.content.value, m.added_files_count) for m in manifests] == [(0, 10), (1, 10)]


def table_manifests(lake: Lake) -> list:
    table = lake.table(NAME)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return sorted(snapshot.manifests(table.io), key=lambda m: m.content.value)


def test_partitions_that_change_under_a_stream(lake: Lake) -> None:
    """A key's row may be in a partition of the old kind: its delete must reach that, too."""
    make_table(lake, spec=BY_PART)
    sink = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    sink.claim()
    commit(sink, [Change(1, "x"), Change(2, "y")], 1, partitioned=True)
    assert sink.plan("w").deletes_by_partition
    base = lake.load(NAME)
    assert base is not None
    by_value = PartitionSpec(PartitionField(3, 1001, IdentityTransform(), "value"), spec_id=7)
    default = SetDefaultSpecUpdate.model_validate({"spec-id": -1})
    lake.commit(base, (), (AddPartitionSpecUpdate(spec=by_value), default))
    with pytest.raises(StreamError, match="partitions of s.t were changed"):
        commit(sink, [Change(1, "z")], 2, partitioned=True)
    assert duckdb_rows(lake, "t") == [(1, "a", "x"), (2, "a", "y")]
    again = Sink(lake, NAME, Progress(SINK), ("id", "part"))
    again.claim()
    assert not again.plan("w").deletes_by_partition
    commit(again, [Change(1, None)], 2, partitioned=True)
    assert duckdb_rows(lake, "t") == [(2, "a", "y")]
