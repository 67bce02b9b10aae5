"""`diff` against a full outer join of both versions by another engine."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
from dbt.adapters.iceberg_stream.diff.difference import RowDifference
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.diff.version import find_versions
from tests.integration.diff_histories import STEPS, History, Version
from tests.integration.tables import duckdb_connection

PAIR = st.tuples(st.integers(0, 20), st.integers(0, 20))


class Join:
    """Both versions in DuckDB, in the columns of the newer one."""

    def __init__(self, before: Version, after: Version) -> None:
        self.connection = duckdb_connection().cursor()
        older = {field.field_id: field.name for field in before.schema.fields}
        self.columns = [field.name for field in after.schema.fields]
        self.make("after_rows", after, [f'"{name}"' for name in self.columns])
        picks = [
            f'"{older[field.field_id]}"' if field.field_id in older else "null"
            for field in after.schema.fields
        ]
        self.make("before_rows", before, picks)

    def make(self, name: str, version: Version, picks: list[str]) -> None:
        path = version.location.removeprefix("file://")
        kinds = {"id": "bigint", "value": "double", "tags": "varchar[]"}
        columns = ", ".join(
            f'{pick}::{kinds.get(column, "varchar")} as "{column}"'
            for pick, column in zip(picks, self.columns, strict=True)
        )
        sql = f"create or replace temp table {name} as select {columns} from iceberg_scan('{path}')"
        self.connection.execute(sql)

    def count(self, sql: str) -> int:
        return int(self.connection.execute(f"select count(*) from ({sql})").fetchall()[0][0])

    def whole_rows(self) -> tuple[int, int]:
        """Rows added and removed."""
        added = self.count("from after_rows except all from before_rows")
        return added, self.count("from before_rows except all from after_rows")

    def is_unique(self) -> bool:
        return not any(
            self.count(f"select id from {name} group by id having count(*) > 1")
            for name in ("before_rows", "after_rows")
        )

    def by_key(self) -> tuple[int, int, dict[str, int]]:
        """Rows added and removed, and those changed by column."""
        join = "{} {} join {} on b.id is not distinct from a.id"
        b, a = "before_rows b", "after_rows a"
        both = f"from {join.format(b, '', a)}"
        changed = {
            name: self.count(f'select 1 {both} where b."{name}" is distinct from a."{name}"')
            for name in self.columns
        }
        added = self.count(f"select 1 from {join.format(a, 'anti', b)}")
        removed = self.count(f"select 1 from {join.format(b, 'anti', a)}")
        return added, removed, {name: count for name, count in changed.items() if count}


def compare(
    lake: IcebergCatalog, history: History, pair: tuple[Version, Version], key: list[str]
) -> RowDifference:
    before, after = (str(version.snapshot_id) for version in pair)
    difference = compare_metadata(*find_versions(lake, history.name, before, after))
    rows = compare_rows(difference, key, memory=MEMORY[0]).rows
    assert rows is not None
    return rows


MEMORY = [1 << 30]


@pytest.mark.parametrize("version", [2, 3])
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, pair=PAIR, spilled=st.booleans())
def test_duckdb_agrees(
    lake: IcebergCatalog,
    version: int,
    steps: list[tuple[str, Any]],
    pair: tuple[int, int],
    spilled: bool,
) -> None:
    history = History(lake, version, ("s", f"t{uuid.uuid4().hex[:8]}"))
    history.run(steps)
    MEMORY[0] = 1 if spilled else 1 << 30
    versions = history.versions
    chosen = versions[pair[0] % len(versions)], versions[pair[1] % len(versions)]
    join = Join(*chosen)
    rows = compare(lake, history, chosen, [])
    assert (rows.added, rows.removed) == join.whole_rows()
    if join.is_unique():
        rows = compare(lake, history, chosen, ["id"])
        assert (rows.added, rows.removed, rows.columns) == join.by_key()
    else:
        # A key that only files have twice that were not read is not noticed.
        try:
            compare(lake, history, chosen, ["id"])
        except DiffError as error:
            assert "is not unique" in str(error)
