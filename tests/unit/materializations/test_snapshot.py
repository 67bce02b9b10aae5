"""The columns of snapshots, in any letter case."""

from __future__ import annotations

import pytest
from dbt.adapters.exceptions import SnapshotTargetNotSnapshotTableError
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.materializations.snapshot import (
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
