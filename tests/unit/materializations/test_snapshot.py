"""The columns of snapshots, in any letter case."""

from __future__ import annotations

import pytest
from dbt.adapters.exceptions import SnapshotTargetNotSnapshotTableError
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.materializations.snapshot import (
    check_query,
    check_target,
    checked_columns,
    row_changed_sql,
)

ID, NAME = IcebergStreamColumn("id", "int"), IcebergStreamColumn("Name", "string")
DBT = [IcebergStreamColumn(name, "string") for name in ("dbt_scd_id", "Since", "UNTIL")]
NAMES = {"dbt_valid_from": "since", "dbt_valid_to": "until", "dbt_is_deleted": "Is_Gone"}


def model(check_cols: object) -> dict[str, object]:
    return {"unique_id": "snapshot.p.s", "config": {"check_cols": check_cols}}


@pytest.mark.parametrize(
    ("check_cols", "expected"),
    [("all", [ID, NAME]), (["NAME"], [NAME]), (["`name`", "Id"], [NAME, ID])],
)
def test_check_cols(check_cols: object, expected: list[IcebergStreamColumn]) -> None:
    assert checked_columns(model(check_cols), [ID, NAME]) == expected


def test_a_misspelled_column() -> None:
    with pytest.raises(CompilationError, match="`check_cols` has nmae, which its query does not"):
        checked_columns(model(["nmae"]), [ID, NAME])


def test_what_has_changed() -> None:
    existing = [IcebergStreamColumn("NAME", "string")]
    assert row_changed_sql([NAME], existing, "a", "b") == "(not (a.`NAME` <=> b.`Name`))"
    assert row_changed_sql([NAME, ID], existing, "a", "b") == "true"


def test_names_of_added_columns() -> None:
    check_target(DBT, NAMES, {"hard_deletes": "invalidate"})
    with pytest.raises(SnapshotTargetNotSnapshotTableError, match="Is_Gone"):
        check_target(DBT, NAMES, {"hard_deletes": "new_record"})
    gone = IcebergStreamColumn("is_gone", "string")
    check_target([*DBT, gone], NAMES, {"hard_deletes": "new_record"})


def query(kind: str, *names: str, **config: object) -> None:
    """Check a query that returns columns with a `dbt_valid_from` of a type."""
    columns = [IcebergStreamColumn(name, "int") for name in names]
    columns += [IcebergStreamColumn("dbt_valid_from", kind), IcebergStreamColumn("dbt_scd_id", "x")]
    node = {"unique_id": "snapshot.p.s", "config": {"strategy": "timestamp", **config}}
    check_query(node, {"hard_deletes": config.get("hard_deletes", "ignore")}, columns)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date", "string"])
def test_types_that_have_a_time_for_deletions(kind: str) -> None:
    query(kind, hard_deletes="invalidate")


@pytest.mark.parametrize("kind", ["bigint", "double", "decimal(20,3)", "boolean"])
def test_types_that_have_no_time_for_deletions(kind: str) -> None:
    query(kind)
    with pytest.raises(CompilationError, match=rf"`updated_at` of snapshot.p.s is {kind[:6]}"):
        query(kind, hard_deletes="new_record")


@pytest.mark.parametrize(
    "name", ["dbt_unique_key", "DBT_Unique_Key_2", "dbt_change_type", "__dbt_until", "dbt_scd_id"]
)
def test_names_of_columns_that_a_snapshot_has_itself(name: str) -> None:
    query("date", "id", "dbt_until", "dbt_valid_to", "dbt_is_deleted")
    with pytest.raises(CompilationError, match=f"`{name.lower()}`, a name that snapshots use"):
        query("date", "id", name)


def test_names_of_columns_that_a_history_has_itself() -> None:
    history = {"strategy": "iceberg_history", "snapshot_meta_column_names": {"dbt_scd_id": "code"}}
    for name in ("dbt_step", "code"):
        node = {"unique_id": "snapshot.p.s", "config": history}
        with pytest.raises(CompilationError, match=f"`{name}`, a name that snapshots use"):
            check_query(node, {"hard_deletes": "ignore"}, [IcebergStreamColumn(name, "int")])
