"""What data tests read and compare."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from dbt_common.exceptions import CompilationError
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.materializations.data_tests import (
    closed_rows,
    relation_at,
    row_counts,
)
from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import INVOCATION_ID
from tests.unit.local_tables import evolve, insert, make_table, set_metadata

ORDERS = IcebergStreamRelation.create(database="lake", schema="s", identifier="t")
FIRST, SECOND = {INVOCATION_ID: "first"}, {INVOCATION_ID: "second"}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(["a"] * len(ids))})


def write(lake: IcebergCatalog, *ids: int, **properties: str) -> int:
    return insert(lake, rows(*ids), **properties).snapshot.snapshot_id


@pytest.fixture
def numbers(lake: IcebergCatalog) -> list[int]:
    make_table(lake)
    return [write(lake, 1, 2, **FIRST), write(lake, 3, **SECOND)]


def test_at(lake: IcebergCatalog, numbers: list[int]) -> None:
    assert relation_at(lake, ORDERS, numbers[0]) == f"`lake`.`s`.`t` version as of {numbers[0]}"
    assert relation_at(lake, ORDERS, "main").endswith(f"version as of {numbers[1]}")


def test_at_needs_a_snapshot(lake: IcebergCatalog) -> None:
    make_table(lake)
    with pytest.raises(CompilationError, match=r"`at`: s\.t before its first snapshot"):
        relation_at(lake, ORDERS, "main")


@pytest.mark.parametrize("at", [datetime.date(2026, 1, 31), datetime.datetime.now(), 1994])
def test_dates_without_quotes(lake: IcebergCatalog, at: Any) -> None:
    with pytest.raises(CompilationError, match="`at` must be text, but YAML has read"):
        relation_at(lake, ORDERS, at)


def test_relations_without_versions(lake: IcebergCatalog) -> None:
    for relation in ("(select 1) dbt_subquery", IcebergStreamRelation.create(identifier="cte")):
        with pytest.raises(CompilationError, match="is not a table of the catalog"):
            relation_at(lake, relation, "main")  # type: ignore[arg-type]


def test_row_counts(lake: IcebergCatalog, numbers: list[int]) -> None:
    assert row_counts(lake, ORDERS, 0.1, None, None, None) == {"before": "2", "after": "3"}
    assert row_counts(lake, ORDERS, 0, "main", numbers[0], None) == {"before": "3", "after": "2"}
    first = {"before": "0", "after": "2"}
    assert row_counts(lake, ORDERS, 0.1, None, numbers[0], None) == first


def test_row_counts_that_metadata_cannot_tell(lake: IcebergCatalog, numbers: list[int]) -> None:
    counted = row_counts(lake, ORDERS, 0.1, None, None, "id > 1")
    assert counted == {
        name: f"(select count(*) from `lake`.`s`.`t` version as of {number} where (id > 1\n))"
        for name, number in zip(("before", "after"), numbers, strict=True)
    }
    snapshots: list[dict[str, Any]] = []
    for snapshot in lake.load(("s", "t")).metadata["snapshots"]:  # type: ignore[union-attr]
        summary = {**snapshot["summary"], "total-delete-files": "1"}
        snapshots.append({**snapshot, "summary": summary})
    set_metadata(lake, snapshots=snapshots)
    counted = row_counts(lake, ORDERS, 0.1, None, None, None)
    assert counted["after"] == f"(select count(*) from `lake`.`s`.`t` version as of {numbers[1]})"


@pytest.mark.parametrize("share", [1, 10, -1, "0.1", None, True])
def test_wrong_shares(lake: IcebergCatalog, share: Any) -> None:
    with pytest.raises(CompilationError, match="`share` must be a number of at least 0"):
        row_counts(lake, ORDERS, share, None, None, None)


def test_closed_rows(lake: IcebergCatalog, numbers: list[int]) -> None:
    period = {"column": "x", "older_than": "2 weeks", "where": "id > 1 or id = 0"}
    compared = closed_rows(lake, ORDERS, None, None, period)
    metadata = lake.load(("s", "t")).metadata  # type: ignore[union-attr]
    seconds = metadata["snapshots"][0]["timestamp-ms"] / 1000
    end = f"timestamp_seconds({seconds:.3f}) - interval 2 weeks"
    where = f"(id > 1 or id = 0\n) and (`x` < {end}\n)"
    for name, number in zip(("before", "after"), numbers, strict=True):
        assert compared[name] == (
            "select `id` as `id`, `x` as `x` from `lake`.`s`.`t` "
            f"version as of {number} where {where}"
        )


def test_nothing_to_compare(lake: IcebergCatalog, numbers: list[int]) -> None:
    assert closed_rows(lake, ORDERS, "main", None, {}) == {}
    assert closed_rows(lake, ORDERS, None, numbers[0], {}) == {}


def test_the_columns_of_both_versions(lake: IcebergCatalog, numbers: list[int]) -> None:
    renamed = Schema(
        NestedField(1, "number", LongType(), required=False),
        NestedField(3, "x", StringType(), required=False),
        schema_id=1,
    )
    evolve(lake, renamed)
    table = pa.table({"number": pa.array([1], pa.int64()), "x": pa.array(["b"])})
    insert(lake, table, **{INVOCATION_ID: "third"})
    compared = closed_rows(lake, ORDERS, None, None, {})
    assert compared["before"].startswith("select `id` as `number` from ")
    assert compared["after"].startswith("select `number` as `number` from ")
    with pytest.raises(CompilationError, match="`exclude_columns` names `id`, which s.t does not"):
        closed_rows(lake, ORDERS, None, None, {"exclude_columns": "id"})


NUMBERS = MapType(10, StringType(), 11, IntegerType(), value_required=False)
NESTED = ListType(12, NUMBERS, element_required=False)


def test_maps(lake: IcebergCatalog) -> None:
    fields = [NestedField(1, "id", LongType(), required=False)]
    make_table(lake, schema=Schema(*fields, NestedField(2, "m", NUMBERS, required=False)))
    numbers = {"id": pa.array([1], pa.int64())}
    for run in ("first", "second"):
        insert(lake, pa.table(numbers), **{INVOCATION_ID: run})
    compared = closed_rows(lake, ORDERS, None, None, {})
    assert "array_sort(map_entries(`m`)) as `m` from" in compared["after"]


@pytest.mark.parametrize(
    "kind",
    [NESTED, StructType(NestedField(20, "inner", NUMBERS, required=False))],
    ids=["list", "struct"],
)
def test_maps_within_a_column(lake: IcebergCatalog, kind: Any) -> None:
    make_table(
        lake,
        schema=Schema(
            NestedField(1, "id", LongType(), required=False),
            NestedField(2, "m", kind, required=False),
        ),
    )
    for run in ("first", "second"):
        insert(lake, pa.table({"id": pa.array([1], pa.int64())}), **{INVOCATION_ID: run})
    with pytest.raises(CompilationError, match="`m` has maps within it"):
        closed_rows(lake, ORDERS, None, None, {})
    compared = closed_rows(lake, ORDERS, None, None, {"exclude_columns": ["M"]})
    assert compared["after"].startswith("select `id` as `id` from")


@pytest.mark.parametrize("interval", ["90", 90, "days", "1 fortnight", "1 day; drop table t"])
def test_wrong_intervals(lake: IcebergCatalog, interval: Any) -> None:
    with pytest.raises(CompilationError, match="`older_than` must be an interval"):
        closed_rows(lake, ORDERS, None, None, {"column": "x", "older_than": interval})
