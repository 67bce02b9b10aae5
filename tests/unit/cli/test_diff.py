"""`iceberg-stream diff` on a project with a SQLite catalog."""

from __future__ import annotations

import contextvars
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import catalog_file
from dbt.adapters.iceberg_stream.cli import main
from tests.unit.local_tables import evolve, insert, make_table, replace

FIELDS = (
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "amount", DoubleType(), required=False),
)
MODEL = "{{ config(materialized='table', alias='t', unique_key='id') }} select 1 as id"


@pytest.fixture
def orders(lake: IcebergCatalog, tmp_path: Path) -> Path:
    """The folder of a project with the table `s.t`: a row of each kind of change."""
    make_table(lake, schema=Schema(*FIELDS))
    insert(lake, pa.table({"id": [1, 2, 3], "amount": [1.0, 2.0, 3.0]}))
    note = NestedField(3, "note", StringType(), required=False)
    evolve(lake, Schema(*FIELDS, note, schema_id=1))
    notes = pa.array(["a|b", None, "new\nline"])
    replace(lake, pa.table({"id": [1, 2, 4], "amount": [1.0, 2.5, 4.0], "note": notes}))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/orders.sql").write_text(MODEL)
    (tmp_path / "models/seen.sql").write_text("{{ config(materialized='view') }} select 1 as id")
    return tmp_path


def call(folder: Path, *arguments: str) -> Result:
    """Run the command as a fresh process would: dbt has left nothing in its context."""
    command = ["diff", *arguments, "--project-dir", str(folder), "--profiles-dir", str(folder)]
    result: Result = contextvars.Context().run(CliRunner().invoke, main, command)
    return result


def test_text(orders: Path) -> None:
    result = call(orders, "s.t", "--key", "id")
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert result.exit_code == 0
    assert lines[0] == "s.t"
    for line in (
        "schema added `note` string",
        "row count 3 before, 3 after",
        "rows 1 added, 1 removed, 2 changed, by key `id`",
        "changed `amount` in 1 rows",
        "added: 1 of 1 row",
        "4 4.0 new line",
        "1 note null a|b",
        "2 amount 2.0 2.5",
    ):
        assert line in lines, result.output


def test_markdown(orders: Path) -> None:
    output = call(orders, "s.t", "--key", "id", "--format", "markdown").output
    for line in (
        "### `s.t`",
        "| added | `note` |  | string |",
        "**1 added, 1 removed, 2 changed**, by key `id`.",
        "| `amount` | 1 |",
        "| 1 | note | null | a\\|b |",
        "<details><summary>removed: 1 of 1 row</summary>",
    ):
        assert line in output.splitlines(), output


def test_json(orders: Path) -> None:
    document = json.loads(call(orders, "s.t", "--key", "id", "--format", "json").output)
    assert document["rows"]["changed_by_column"] == {"amount": 1, "note": 1}
    assert document["rows"]["samples"]["added"] == [{"id": 4, "amount": 4.0, "note": "new\nline"}]
    assert document["schema"] == [
        {"kind": "added", "column": "note", "before": None, "after": "string"}
    ]


def test_a_model_has_its_key(orders: Path) -> None:
    document = json.loads(call(orders, "orders", "--format", "json").output)
    assert document["rows"]["key"] == ["id"]
    assert document["to"]["table"] == "s.t"
    whole = json.loads(call(orders, "orders", "--whole-rows", "--format", "json").output)
    assert (whole["rows"]["key"], whole["rows"]["added"]) == ([], 3)


def test_metadata_alone(orders: Path) -> None:
    """The data files need not even be there."""
    for file in orders.rglob("*.parquet"):
        file.unlink()
    assert "row count" in call(orders, "s.t", "--metadata").output
    document = json.loads(call(orders, "s.t", "--metadata", "--format", "json").output)
    assert document["rows"] is None
    assert (
        "| + files | 1 data file of 3 rows,"
        in call(orders, "s.t", "--metadata", "--format", "markdown").output
    )
    lost = call(orders, "s.t")
    assert (lost.exit_code, type(lost.exception)) == (1, SystemExit)
    assert ".parquet" in lost.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("s.nothing",), "There is no table s.nothing in the catalog `lake`."),
        (("s.v",), "s.v is a view, which has no snapshots. Give a table."),
        (("nothing",), "The model `nothing` does not exist in the project."),
        (("seen",), "The model `seen` is materialized as view, which has no snapshots."),
        (("a.b.c",), "The profile has no catalog `a`. It has lake."),
        (("s.t", "--key", "nothing"), "has no key column `nothing`. It has `id`, `amount`, `note`"),
        (("s.t", "--key", "id,,x"), "must be column names separated by commas, got `id,,x`."),
        (("s.t", "--key", "id", "--whole-rows"), "Give either --key or --whole-rows, not both."),
        (("s.t", "--from", "nothing"), "`nothing` is not a version of s.t."),
        (("s.t", "--to", "77"), "s.t has no snapshot 77"),
        (("s.t", "--rows", "-1"), "Invalid value for '--rows'"),
    ],
)
def test_bad_input(orders: Path, arguments: tuple[str, ...], problem: str) -> None:
    # As Spark creates a view.
    view = orders / "v.metadata.json"
    view.write_text(json.dumps({"view-uuid": "v", "current-version-id": 1}))
    with closing(sqlite3.connect(catalog_file(orders / "warehouse"))) as database, database:
        columns = ("lake", "s", "v", view.as_uri(), None, "VIEW")
        database.execute("insert into iceberg_tables values (?, ?, ?, ?, ?, ?)", columns)
    result = call(orders, *arguments)
    assert result.exit_code in (1, 2)
    assert problem in " ".join(result.output.split()), result.output
