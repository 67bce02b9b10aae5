"""Records of builds: what has changed since, and what they say in the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import same_rows
from dbt.adapters.iceberg_stream.unchanged.inputs import (
    NO_INPUTS,
    Inputs,
    UnknownInputs,
    capture_inputs,
    schema_digest,
)
from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    PROPERTY,
    BuildRecord,
    definition_digest,
    is_as_left,
    read_record,
    write_record,
)
from tests.unit.local_tables import insert, make_catalog, make_table

NAME = ("s", "t")
RECORD = BuildRecord(
    code={"its code": "a", "its config": "b"},
    mode=FULL,
    query="q",
    inputs={"tables": {"s.raw": [7, "columns"]}, "views": "v"},
    snapshot_id=5,
    built_at="2026-11-24T09:00:00+00:00",
    schema="c",
)
INPUTS = Inputs({"s.raw": ((7,), "columns")}, "v")


@pytest.fixture
def catalog(tmp_path: Path) -> IcebergCatalog:
    return make_catalog(tmp_path)


@pytest.mark.parametrize(
    "record, inputs, reason",
    [
        (RECORD, INPUTS, None),
        (replace(RECORD, code={**RECORD.code, "its code": "x"}), INPUTS, "its code changed"),
        (replace(RECORD, code={**RECORD.code, "more": "x"}), INPUTS, "more changed"),
        (replace(RECORD, code={"its code": "a"}), INPUTS, "its config changed"),
        (RECORD, Inputs({"s.raw": ((8,), "columns")}, "v"), "s.raw has other rows"),
        (RECORD, Inputs({"s.raw": ((8, 7), "columns")}, "v"), None),
        (RECORD, Inputs({"s.raw": ((7,), "x")}, "v"), "s.raw has other columns"),
        (RECORD, Inputs(INPUTS.tables, "x"), "a view that it reads has changed"),
        (RECORD, Inputs({}, "v"), "it reads other tables: s.raw"),
        (
            RECORD,
            Inputs({**INPUTS.tables, "s.more": ((1,), "x")}, "v"),
            "it reads other tables: s.more",
        ),
    ],
)
def test_change(record: BuildRecord, inputs: Inputs, reason: str | None) -> None:
    assert RECORD.change_to(record, inputs, with_rows=True) == reason


def test_new_rows_do_not_matter_to_a_view() -> None:
    inputs = Inputs({"s.raw": ((8,), "columns")}, "v")
    assert RECORD.change_to(RECORD, inputs, with_rows=False) is None


def test_a_table_keeps_its_record(catalog: IcebergCatalog) -> None:
    make_table(catalog)
    snapshot_id = append_row(catalog, 1)
    write_record(catalog, NAME, replace(RECORD, snapshot_id=snapshot_id))
    metadata = _metadata(catalog)
    record = read_record(metadata)
    assert record == replace(RECORD, snapshot_id=snapshot_id, schema=schema_digest(metadata))
    assert is_as_left(metadata, record)
    append_row(catalog, 2)
    assert not is_as_left(_metadata(catalog), record)


def test_a_table_without_rows(catalog: IcebergCatalog) -> None:
    make_table(catalog)
    write_record(catalog, NAME, replace(RECORD, snapshot_id=None))
    record = read_record(_metadata(catalog))
    assert record is not None
    assert is_as_left(_metadata(catalog), record)
    append_row(catalog, 1)
    assert not is_as_left(_metadata(catalog), record)


def test_a_table_that_was_dropped(catalog: IcebergCatalog) -> None:
    with pytest.raises(CatalogError, match="s.t does not exist"):
        write_record(catalog, NAME, RECORD)


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", "{}", json.dumps({"code": {}})])
def test_no_record_that_can_be_read(text: str | None) -> None:
    properties = {} if text is None else {PROPERTY: text}
    assert read_record({"properties": properties}) is None


def test_a_view_is_as_left_with_the_same_text() -> None:
    view = _view("\nselect 1\n")
    record = replace(RECORD, query=definition_digest("select 1"), schema=schema_digest(view))
    assert is_as_left(view, record)
    assert is_as_left(_view("-- Spark leaves it out\nselect /* one */ 1"), record)
    assert not is_as_left(_view("select 2"), record)
    assert not is_as_left(_view("select '1'"), record)
    assert not is_as_left(_view("select 1", "other"), record)


def test_snapshots_with_the_same_rows() -> None:
    metadata = {
        "current-snapshot-id": 4,
        "snapshots": [
            _snapshot(1, None, "append"),
            _snapshot(2, 1, "append"),
            _snapshot(3, 2, "replace"),
            _snapshot(4, 3, "replace"),
        ],
    }
    assert list(same_rows(metadata)) == [4, 3, 2]
    assert list(same_rows({**metadata, "current-snapshot-id": 2})) == [2]
    assert list(same_rows({**metadata, "current-snapshot-id": -1})) == [None]
    # The earlier ones have expired.
    assert list(same_rows({**metadata, "snapshots": [_snapshot(4, 3, "replace")]})) == [4, 3]


class TestInputs:
    def test_tables(self, catalog: IcebergCatalog) -> None:
        make_table(catalog)
        make_table(catalog, name=("s", "u"))
        before = capture_inputs(one_catalog(catalog), "select * from s.t join s.u", ("s", "new"))
        assert sorted(before.tables) == ["s.t", "s.u"]
        append_row(catalog, 1)
        after = capture_inputs(one_catalog(catalog), "select * from s.t join s.u", ("s", "new"))
        assert after.change_since(before.as_json()) == "s.t has other rows"
        assert before.change_since(before.as_json()) is None

    def test_the_own_table_is_no_input(self, catalog: IcebergCatalog) -> None:
        make_table(catalog)
        inputs = capture_inputs(one_catalog(catalog), "select * from s.t where id > 5", NAME)
        assert inputs == replace(NO_INPUTS, reads_own=True)

    def test_staged_tables_count_as_published(self, catalog: IcebergCatalog) -> None:
        make_table(catalog, name=("s", "t__dbt_build_pr-42"))
        sql = "select * from s.`t__dbt_build_pr-42`"
        inputs = capture_inputs(one_catalog(catalog), sql, ("s", "new"), "pr-42")
        assert list(inputs.tables) == ["s.t"]
        assert inputs.reads_staged
        own = replace(NO_INPUTS, reads_own=True, reads_staged=True)
        assert capture_inputs(one_catalog(catalog), sql, NAME, "pr-42") == own

    def test_fixed_versions(self, catalog: IcebergCatalog) -> None:
        make_table(catalog)
        first = append_row(catalog, 1)
        tag, fixed = (
            "select * from s.t version as of 'main'",
            f"select * from s.t version as of {first}",
        )
        before = [capture_inputs(one_catalog(catalog), sql, ("s", "new")) for sql in (tag, fixed)]
        append_row(catalog, 2)
        after = [capture_inputs(one_catalog(catalog), sql, ("s", "new")) for sql in (tag, fixed)]
        changes = [new.change_since(old.as_json()) for new, old in zip(after, before, strict=True)]
        assert changes == ["s.t has other rows", None]

    @pytest.mark.parametrize(
        "sql, reason",
        [
            ("select rand()", "its rows may change with `rand`"),
            ("select * from s.t timestamp as of '2026-01-01'", "its rows may change with `as of`"),
            ("select * from s.missing", "it reads something that is not a table or view"),
            ("select * from json.`files/a.json`", "it reads something that is not a table or view"),
            ("select * from other.s.t", "it reads something that is not a table or view"),
        ],
    )
    def test_unknown(self, catalog: IcebergCatalog, sql: str, reason: str) -> None:
        make_table(catalog)
        with pytest.raises(UnknownInputs) as raised:
            capture_inputs(one_catalog(catalog), sql, ("s", "new"))
        assert str(raised.value).startswith(reason)


def test_comments_are_no_other_columns() -> None:
    def metadata(**field: Any) -> Mapping[str, Any]:
        fields = [{"id": 1, "name": "id", "type": "long", "required": False, **field}]
        return {"current-schema-id": 1, "schemas": [{"schema-id": 1, "fields": fields}]}

    plain = schema_digest(metadata())
    assert schema_digest(metadata(doc="The key.")) == plain
    assert schema_digest(metadata(name="key")) != plain
    assert schema_digest(metadata(type="int")) != plain
    assert schema_digest(metadata(required=True)) != plain


def append_row(catalog: IcebergCatalog, number: int) -> int:
    return insert(catalog, pa.table({"id": [number], "x": ["x"]})).snapshot.snapshot_id


def _metadata(catalog: IcebergCatalog) -> Any:
    metadata = catalog.metadata(NAME)
    assert metadata is not None
    return metadata


def _snapshot(snapshot_id: int, parent: int | None, operation: str) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent,
        "summary": {"operation": operation},
    }


def _view(sql: str, column: str = "x") -> dict[str, Any]:
    representation = {"type": "sql", "sql": sql, "dialect": "spark"}
    version = {"version-id": 1, "schema-id": 0, "representations": [representation]}
    field = {"id": 1, "name": column, "type": "int", "required": False}
    schemas = [{"schema-id": 0, "fields": [field]}]
    return {"current-version-id": 1, "versions": [version], "schemas": schemas}
