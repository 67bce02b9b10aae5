"""`diff` against a full outer join of both versions by other engines."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.api import Mode, diff, ingest
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
from dbt.adapters.iceberg_stream.diff.difference import RowDifference
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import find_versions
from dbt.adapters.iceberg_stream.engines.session import Session
from tests.integration.diff_histories import History, Version, steps
from tests.integration.tables import duckdb_connection
from tests.integration.writers import open_catalog

IDS = [0, 1, 2, 3, 4, 5, 6]
# The field id of the column that histories drop.
DROPPED = 4
# Two pairs of versions of each history.
PAIRS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=2)
# Bytes that stay in memory: all rows, or a few of them.
MEMORY = st.sampled_from([1 << 30, 100])
SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    # To shrink a history takes minutes.
    "phases": [Phase.explicit, Phase.generate],
}


class Join:
    """Both versions in another engine, with the columns of the newer one.

    Args:
        before: the older version.
        after: the newer version.
        run: runs a statement, and returns the first of its rows.
        source: the SQL of a version.
        text: the engine's name of the type of `tags`.
        relation: what a version becomes, a temporary table or view.
    """

    def __init__(
        self,
        before: Version,
        after: Version,
        run: Callable[[str], list[int]],
        source: Callable[[Version], str],
        text: str,
        relation: str,
    ) -> None:
        self.run = run
        self.relation = relation
        self.types = {"id": "bigint", "value": "double", "tags": text}
        self.text = text.removesuffix("[]").removeprefix("array<").removesuffix(">")
        older = {field.field_id: field.name for field in before.schema.fields}
        fields = after.schema.fields
        self.columns = [field.name for field in fields]
        self.create("new_rows", source(after), self.columns)
        self.create("old_rows", source(before), [older.get(f.field_id, "null") for f in fields])

    def create(self, name: str, source: str, picks: list[str]) -> None:
        columns = [
            f"cast({pick} as {self.types.get(column, self.text)}) as {column}"
            for pick, column in zip(picks, self.columns, strict=True)
        ]
        self.run(
            f"create or replace {self.relation} {name} as select {', '.join(columns)} from {source}"
        )

    def whole_rows(self) -> tuple[int, int]:
        """Rows added and removed."""
        old, new = "select * from old_rows", "select * from new_rows"
        added, removed = self.counts(f"{new} except all {old}", f"{old} except all {new}")
        return added, removed

    def is_unique(self) -> bool:
        twice = "select id from {} group by id having count(*) > 1"
        return self.counts(twice.format("old_rows"), twice.format("new_rows")) == [0, 0]

    def counts(self, *queries: str) -> list[int]:
        """Rows of each query."""
        counts = [
            f"(select count(*) as n{n} from ({sql}) as q{n})" for n, sql in enumerate(queries)
        ]
        return self.run(f"select * from {' cross join '.join(counts)}")

    def by_key(self) -> tuple[int, int, dict[str, int]]:
        """Rows added and removed, and those changed by column."""
        both = "b.mark is not null and a.mark is not null"
        filters = ["b.mark is null", "a.mark is null"]
        filters += [f"{both} and b.{name} is distinct from a.{name}" for name in self.columns]
        counts = [f"count(*) filter (where {sql}) as n{n}" for n, sql in enumerate(filters)]
        added, removed, *changed = self.run(
            f"select {', '.join(counts)} from (select *, 1 as mark from old_rows) b full outer "
            "join (select *, 1 as mark from new_rows) a on b.id is not distinct from a.id"
        )
        columns = zip(self.columns, changed, strict=True)
        return added, removed, {name: count for name, count in columns if count}


def compare(
    lake: IcebergCatalog,
    history: History,
    pair: tuple[Version, Version],
    key: list[str],
    memory: int,
) -> RowDifference:
    before, after = (str(version.snapshot_id) for version in pair)
    difference = compare_metadata(*find_versions(lake, history.name, before, after))
    rows = compare_rows(difference, key, memory=memory).rows
    assert rows is not None
    return rows


def check(
    lake: IcebergCatalog,
    history: History,
    pair: tuple[int, int],
    memory: int,
    join_of: Callable[[Version, Version], Join],
) -> None:
    """Compare two versions of a history in both ways."""
    versions = history.versions
    chosen = versions[pair[0] % len(versions)], versions[pair[1] % len(versions)]
    ids = [{field.field_id for field in version.schema.fields} for version in chosen]
    if DROPPED in ids[1] - ids[0]:
        # Back in time, `diff` reads the values that files still have; SQL has no way to do so.
        return
    join = join_of(*chosen)
    rows = compare(lake, history, chosen, [], memory)
    assert (rows.added, rows.removed) == join.whole_rows()
    if join.is_unique():
        rows = compare(lake, history, chosen, ["id"], memory)
        assert (rows.added, rows.removed, rows.columns) == join.by_key()
        return
    # A key that only files have twice that were not read is not noticed.
    try:
        compare(lake, history, chosen, ["id"], memory)
    except DiffError as error:
        assert "is not unique" in str(error)


def new_history(lake: IcebergCatalog, version: int, made: list[tuple[str, Any]]) -> History:
    history = History(lake, version, ("s", f"t{uuid.uuid4().hex[:8]}"))
    history.run(made)
    return history


# DuckDB 1.5 loses rows whose key is null where an equality delete applies.
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
@settings(max_examples=15, **SETTINGS)
@given(made=steps(IDS), pairs=PAIRS, memory=MEMORY)
def test_duckdb_agrees(
    lake: IcebergCatalog, version: int, made: list[Any], pairs: list[Any], memory: int
) -> None:
    cursor = duckdb_connection().cursor()

    def run(sql: str) -> list[int]:
        rows = cursor.execute(sql).fetchall()
        return list(rows[0]) if rows else []

    def source(version: Version) -> str:
        return f"iceberg_scan('{version.location.removeprefix('file://')}')"

    def join_of(before: Version, after: Version) -> Join:
        return Join(before, after, run, source, "varchar[]", "temp table")

    history = new_history(lake, version, made)
    for pair in pairs:
        check(lake, history, pair, memory, join_of)


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
@settings(max_examples=7, **SETTINGS)
@given(made=steps([None, *IDS]), pairs=PAIRS, memory=MEMORY)
@pytest.mark.slow
def test_spark_agrees(
    lake: IcebergCatalog,
    spark: Session,
    version: int,
    made: list[Any],
    pairs: list[Any],
    memory: int,
) -> None:
    history = new_history(lake, version, made)
    name = ".".join(history.name)

    def run(sql: str) -> list[int]:
        if sql.startswith("create"):
            spark.run(sql)
            return []
        return [column[0].as_py() for column in spark.rows(sql).columns]

    def source(version: Version) -> str:
        return f"{name} version as of {version.snapshot_id}"

    def join_of(before: Version, after: Version) -> Join:
        return Join(before, after, run, source, "array<string>", "temp view")

    for pair in pairs:
        check(lake, history, pair, memory, join_of)


def test_each_catalog(place: dict[str, str]) -> None:
    """The snapshots of a table on a server are compared as those of a local one."""
    lake = open_catalog(place)
    name = (f"n{uuid.uuid4().hex[:8]}", "t")
    lake.create_namespace(name[0])
    for values in ([1.0, 2.0], [1.0, 3.0]):
        rows = pa.table({"id": [1, 2], "value": values})
        ingest(lake, name, rows.to_reader(), Mode.REPLACE if lake.load(name) else Mode.CREATE)
    difference = diff(lake, name, key=["id"])
    assert difference.rows is not None
    assert (difference.rows.changed, difference.rows.columns) == (1, {"value": 1})
    whole = diff(lake, name, before=str(difference.before.snapshot_id)).rows
    assert whole is not None
    assert (whole.added, whole.removed) == (1, 1)
    lake.close()
