from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.credentials import IcebergStreamCredentials


def parse(**keys: Any) -> IcebergStreamCredentials:
    data = IcebergStreamCredentials.translate_aliases(keys)
    IcebergStreamCredentials.validate(data)
    return IcebergStreamCredentials.from_dict(data)


def test_a_schema_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CI", "true")
    found = parse(schema="s")
    assert (found.database, found.method, found.keep_alive) == ("lake", "embedded", 0)
    assert found.warehouse_path(tmp_path) == (tmp_path / "lakehouse").resolve()
    assert found.engine_path(tmp_path) == (tmp_path / ".iceberg_stream").resolve()


def test_catalog_is_another_word_for_database() -> None:
    assert parse(schema="s", catalog="prod").database == "prod"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "`schema` is missing"),
        ({"schema": "s", "warehous": "x"}, "unknown key `warehous`: did you mean `warehouse`"),
        ({"schema": "s", "database": "a-b"}, "`database: a-b` is no catalog name"),
        ({"schema": "s", "keep_alive": -1}, "`keep_alive: -1` is no number of seconds"),
        ({"schema": "s", "driver_memory": "2 gigs"}, "write e.g. 2g"),
        ({"schema": "s", "spark_conf": "x"}, "`spark_conf` must be a mapping"),
    ],
)
def test_faults(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DbtRuntimeError, match=message):
        parse(**keys)


def test_versions_are_shown(tmp_path: Path) -> None:
    shown = dict(parse(schema="s").connection_info())
    assert shown["pyspark"].startswith("4.1")
    assert "iceberg-spark-runtime" in shown["jars"]
    assert "java" in shown
