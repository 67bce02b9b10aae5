"""Answers of Glue, Hive and databases that are lost: what was committed is found in the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as boto
from sqlalchemy import exc as sql

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.client_errors import client_errors, may_have_arrived
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from tests.unit.local_tables import NAME, rows

ROW = pa.table({"id": [1]})


def thrift_error(name: str, module: str = "thrift.transport.TTransport", **more: Any) -> Exception:
    """Thrift is not among what tests need: its errors are known by their names."""
    base = sys.modules["thrift.Thrift"].TException  # type: ignore[attr-defined]
    made: Exception = type(name, (base,), {"__module__": module, **more})("broken pipe")
    return made


@pytest.fixture(autouse=True)
def thrift(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("thrift.Thrift")
    kind = type("TException", (Exception,), {"__module__": "thrift.Thrift"})
    module.TException = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "thrift.Thrift", module)


def client_error(status: int) -> Exception:
    answer: Any = {"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(answer, "UpdateTable")


ERRORS: dict[str, tuple[Callable[[], Exception], bool]] = {
    "glue 500": (lambda: client_error(500), True),
    "glue 503": (lambda: client_error(503), True),
    "glue 499": (lambda: client_error(499), False),
    "glue 403": (lambda: client_error(403), False),
    "glue closed": (lambda: boto.ConnectionClosedError(endpoint_url="u"), True),
    "glue slow": (lambda: boto.ReadTimeoutError(endpoint_url="u"), True),
    "glue absent": (lambda: boto.EndpointConnectionError(endpoint_url="u"), False),
    "glue not reached": (lambda: boto.ConnectTimeoutError(endpoint_url="u"), False),
    "glue credentials": (lambda: boto.NoCredentialsError(), False),
    "hive closed": (lambda: thrift_error("TTransportException", type=4), True),
    "hive absent": (lambda: thrift_error("TTransportException", type=1), False),
    "hive no answer": (lambda: thrift_error("TApplicationException", "thrift.Thrift"), True),
    "hive garbled": (lambda: thrift_error("TProtocolException"), True),
    "hive database": (lambda: thrift_error("MetaException", "hive_metastore.ttypes"), True),
    "hive refuses": (lambda: thrift_error("InvalidOperationException", "hive_metastore.ttypes"), False),
    "socket": (lambda: ConnectionResetError("reset"), True),
    "socket slow": (lambda: TimeoutError("slow"), True),
    "database gone": (lambda: sql.OperationalError("commit", {}, Exception("gone")), True),
    "database closed": (lambda: sql.InterfaceError("commit", {}, Exception("closed")), True),
    "database refuses": (lambda: sql.ProgrammingError("x", {}, Exception("no table")), False),
    "database busy": (lambda: sql.TimeoutError("pool"), False),
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A database's catalog through PyIceberg, as any of Hive's or Glue's."""
    uri = f"jdbc:sqlite:{tmp_path}/catalog.db"
    given = {"type": "jdbc", "uri": uri, "warehouse": f"file://{tmp_path}"}
    lake = IcebergCatalog("lake", RemoteBackend(CatalogSettings("lake", given), None))
    lake.create_namespace("s")
    few = {"commit.retry.num-retries": "2"}
    ingest(lake, NAME, ROW.to_reader(), Mode.CREATE, properties=few)
    yield lake
    lake.close()


@pytest.mark.parametrize("name", ERRORS)
def test_whether_it_may_have_arrived(name: str) -> None:
    make, expected = ERRORS[name]
    assert may_have_arrived(make()) is expected
    assert isinstance(make(), client_errors())


@pytest.mark.parametrize("name", [name for name, (_, lost) in ERRORS.items() if lost])
def test_a_lost_answer_of_a_commit_that_was_made(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    commit, faults = lake.pyiceberg.commit_table, [ERRORS[name][0]()]

    def commit_and_lose(*arguments: Any) -> Any:
        result = commit(*arguments)
        while faults:
            raise faults.pop()
        return result

    monkeypatch.setattr(lake.pyiceberg, "commit_table", commit_and_lose)
    result = ingest(lake, NAME, ROW.to_reader())
    assert rows(lake) == [(1,), (1,)]
    table = lake.table(NAME)
    assert [s.snapshot_id for s in table.snapshots()][1:] == [result.snapshot_id]


CREATED = ("s", "created")


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("name", ["glue 500", "glue 403", "hive closed", "database gone", "socket"])
def test_a_lost_answer_of_a_registration(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, name: str, is_made: bool
) -> None:
    register, (make, is_unknown) = lake.pyiceberg.register_table, ERRORS[name]
    location = lake.table(NAME).metadata_location

    def lose(*arguments: Any) -> Any:
        if is_made:
            register(*arguments)
        raise make()

    monkeypatch.setattr(lake.pyiceberg, "register_table", lose)
    if is_made and is_unknown:
        lake.register(CREATED, location)
        assert rows(lake, CREATED) == [(1,)]
    else:
        with pytest.raises(CatalogError) as raised:
            lake.register(CREATED, location)
        assert isinstance(raised.value, CommitStateUnknown) is is_unknown


@pytest.mark.parametrize("name", ["glue closed", "hive closed", "database gone", "socket"])
def test_one_that_stays_lost_keeps_its_files(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    def lose(*_: Any) -> Any:
        raise ERRORS[name][0]()

    monkeypatch.setattr(lake.pyiceberg, "commit_table", lose)
    with pytest.raises(CommitStateUnknown, match="did not confirm the commit to s.t"):
        ingest(lake, NAME, ROW.to_reader())
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


@pytest.mark.parametrize("name", [name for name, (_, lost) in ERRORS.items() if not lost])
def test_a_refusal_leaves_no_file(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> Any:
        raise ERRORS[name][0]()

    monkeypatch.setattr(lake.pyiceberg, "commit_table", refuse)
    with pytest.raises(CatalogError, match="failed to commit to s.t") as raised:
        ingest(lake, NAME, ROW.to_reader())
    assert not isinstance(raised.value, CommitStateUnknown)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
