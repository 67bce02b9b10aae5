"""What a stream reads of its table is one version, whatever others commit and roll back meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.orphans import unreferenced_files
from dbt.adapters.iceberg_stream.stream.batches import batch_writer, runners
from tests.integration.stream_bed import Bed
from tests.integration.tables import LATER

POSITION = {"delete_encoding": "position", "max_indexed_rows": 1}
COPY_ON_WRITE = {"delete_encoding": "copy_on_write"}
COMPACT = (
    "call lake.system.rewrite_data_files(table => '{0}', options => map('rewrite-all', 'true'))"
)


def changed(*keys: int, b: int = 0, at: int = 10) -> list[dict[str, Any]]:
    return [{"id": key, "a": "x", "b": b, "at": at, "op": "u"} for key in keys]


def while_it_runs(
    function: Callable[..., Any], spark: Session, table: str, statement: str
) -> Callable[..., Any]:
    """Let another writer run a statement before the table is read first, and undo it after."""
    done: list[str] = []

    def wrapped(*arguments: Any) -> Any:
        sql = [a for a in arguments if isinstance(a, str) and table.split(".")[1] in a]
        if done or not sql:
            return function(*arguments)
        done.append(statement)
        refs = f"select snapshot_id from {table}.refs where name = 'main'"
        ((before,),) = as_rows(spark.query(refs))
        spark.run(statement.format(table))
        result = function(*arguments)
        spark.run(f"call lake.system.rollback_to_snapshot('{table}', {before})")
        return result

    return wrapped


def require_whole(made: Bed) -> None:
    base = made.lake.load(("s", made.name))
    assert base is not None
    assert [f for f in check_table(base, data=True).findings if f.severity != "note"] == []
    assert unreferenced_files(base, LATER) == []


@pytest.mark.parametrize(
    ("options", "statement"),
    [
        (POSITION, COMPACT),
        (POSITION, "delete from {0} where id = 1"),
        (COPY_ON_WRITE, COMPACT),
        (COPY_ON_WRITE, "delete from {0} where id = 1"),
    ],
)
def test_rows_are_located_in_the_version_that_is_changed(
    lake: IcebergCatalog,
    spark: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    statement: str,
) -> None:
    made = Bed(lake, spark, tmp_path / "landing", runners.in_process, options)
    for batch in (changed(1, 2, 3), changed(4, 5)):
        made.land(batch)
        made.drain()
    find = while_it_runs(batch_writer.find_positions, spark, f"s.{made.name}", statement)
    monkeypatch.setattr(batch_writer, "find_positions", find)
    made.land(changed(1, 4, b=7))
    made.drain()
    assert made.rows("id, b") == [(1, 7), (2, 0), (3, 0), (4, 7), (5, 0)]
    require_whole(made)


def test_late_changes_are_compared_with_one_version(
    lake: IcebergCatalog, spark: Session, tmp_path: Path
) -> None:
    """The row that another writer deletes and brings back is newer than the change."""
    options = {"delete_encoding": "equality", "sequence_by": ("at",)}
    made = Bed(lake, spark, tmp_path / "landing", runners.in_process, options)
    made.land(changed(1, 2))
    made.drain()
    made.land(changed(1, b=7, at=5))
    statement = "delete from {0} where id = 1"
    made.runner = while_it_runs(runners.in_process, spark, f"s.{made.name}", statement)
    made.drain()
    assert made.rows("id, b") == [(1, 0), (2, 0)]
    require_whole(made)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["orc", "avro"])
def test_deletes_of_spark_in_other_formats(
    lake: IcebergCatalog, spark: Session, tmp_path: Path, name: str, version: int
) -> None:
    """In version 3 they are vectors; in version 2 our deletes add up with them."""
    properties = (
        f"'format-version' = '{version}', 'write.delete.format.default' = '{name}', "
        "'write.delete.mode' = 'merge-on-read'"
    )
    layout = f"tblproperties ({properties})"
    made = Bed(lake, spark, tmp_path / "landing", runners.in_process, POSITION, layout=layout)
    made.land(changed(1, 2, 3))
    made.drain()
    for key in (1, 2):
        made.spark.run(f"delete from s.{made.name} where id = {key}")
        made.land(changed(3, b=key))
        made.drain()
        assert made.rows("id, b") == [(other, 0) for other in (2,) if key == 1] + [(3, key)]
