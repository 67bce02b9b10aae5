"""dbt's connections without an engine: errors, cancellation, refreshes, users."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from dbt.adapters.contracts.connection import ConnectionState
from dbt.adapters.exceptions import FailedToConnectError
from dbt_common.exceptions import DbtDatabaseError

from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.sessions import pool

REST = {"type": "rest", "uri": "https://catalog"}


class Session:
    """Records statements."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def run(self, sql: str) -> None:
        self.statements.append(sql)


class Handle:
    def __init__(self) -> None:
        self.session, self.reusable = Session(), True
        self.principal_and_expiry = "ada"

    def refresh_token(self) -> None: ...


def connect(folder: Path, **keys: Any) -> IcebergStreamConnectionManager:
    data = IcebergStreamCredentials.translate_aliases({"schema": "s", **keys})
    IcebergStreamCredentials.validate(data)
    credentials = IcebergStreamCredentials.from_dict(data)
    profile: Any = SimpleNamespace(credentials=credentials, project_root=str(folder))
    manager = IcebergStreamConnectionManager(profile, multiprocessing.get_context("spawn"))
    manager.set_connection_name("a_model")
    return manager


@pytest.fixture
def manager(tmp_path: Path) -> IcebergStreamConnectionManager:
    return connect(tmp_path)


def test_a_server_that_cannot_start_fails_the_connection(
    manager: IcebergStreamConnectionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> Any:
        raise EngineError("No Java 17 or 21 was found.")

    monkeypatch.setattr(pool.SessionPool, "take", refuse)
    connection = manager.get_thread_connection()
    with pytest.raises(FailedToConnectError, match=r"Spark cannot be used\. No Java 17 or 21"):
        manager.open(connection)
    assert connection.state == ConnectionState.FAIL


def test_an_error_names_the_user_of_the_request(manager: IcebergStreamConnectionManager) -> None:
    manager.get_thread_connection().handle = Handle()
    refusal = StatementError("Forbidden: no privilege")
    with (
        pytest.raises(DbtDatabaseError) as raised,
        manager.exception_handler("insert into s.t values (1)"),
    ):
        raise refusal
    assert "The request to the catalog was made as ada." in str(raised.value)


@pytest.mark.parametrize(
    ("names", "statement"),
    [
        ([("s", "t")], "refresh table `lake`.`s`.`t`"),
        ([("other", "s", "t")], "refresh table `other`.`s`.`t`"),
        (
            [("s", "t"), ("s", "a`b")],
            "begin\nrefresh table `lake`.`s`.`t`;\nrefresh table `lake`.`s`.`a``b`;\nend",
        ),
    ],
    ids=["own catalog", "another catalog", "several tables"],
)
def test_tables_are_refreshed_in_one_statement(
    tmp_path: Path, names: list[tuple[str, ...]], statement: str
) -> None:
    manager = connect(
        tmp_path, method="connect", host="localhost", catalog_properties=REST, database="lake"
    )
    connection = manager.get_thread_connection()
    connection.handle, connection.state = Handle(), ConnectionState.OPEN
    manager.refresh_spark(*names)
    assert connection.handle.session.statements == [statement]


def test_nothing_is_refreshed_before_the_engine_runs(
    manager: IcebergStreamConnectionManager,
) -> None:
    connection = manager.get_thread_connection()
    connection.handle, connection.state = Handle(), ConnectionState.OPEN
    manager.refresh_spark(("s", "t"))
    assert connection.handle.session.statements == []


def test_each_catalog_has_the_user_of_its_own_token(tmp_path: Path) -> None:
    def token(user: str) -> Mapping[str, Any]:
        return {"catalog_properties": REST, "token": jwt.encode({"sub": user}, "k" * 32)}

    manager = connect(tmp_path, database="lake", catalogs={"other": token("grace")}, **token("ada"))
    for identity in manager.resources.identities.values():
        identity.token()
    users = {name: manager.principal_of(name) for name in ("lake", "other", "absent")}
    assert users == {"lake": "ada", "other": "grace", "absent": ""}
    owners = {name: manager.owner_of(name) for name in ("lake", "other", "absent")}
    assert owners["absent"] == "" and len(set(owners.values())) == 3


def test_a_connection_that_is_not_open_has_the_default_settings(
    manager: IcebergStreamConnectionManager,
) -> None:
    assert manager.has_default_settings()
    connection = manager.get_thread_connection()
    connection.handle, connection.state = Handle(), ConnectionState.OPEN
    assert manager.has_default_settings()
    manager.discard_session()
    assert not manager.has_default_settings()
