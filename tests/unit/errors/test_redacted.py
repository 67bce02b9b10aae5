"""Whatever users see of errors and logs is without secrets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow.flight as flight
import pytest
from dbt_common.events import get_event_manager
from dbt_common.events.base_types import EventMsg
from dbt_common.events.event_manager import EventManager

from dbt.adapters.iceberg_stream import errors
from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.identity.errors import IdentityError
from dbt.adapters.iceberg_stream.catalog.storage import StorageError
from dbt.adapters.iceberg_stream.cli.options import plain_errors
from dbt.adapters.iceberg_stream.diff.errors import DiffError
from dbt.adapters.iceberg_stream.engines.jars import _unfetched
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.errors.spark import CREDENTIALS_REFUSED, StatementError
from dbt.adapters.iceberg_stream.flight.server import FlightSqlServer
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.tables.clones import NotClonable

TEXT = 'https://me:hush@host/x answered {"client_secret": "hush"} to Bearer hush.hush.hush'
SOURCE = Path(str(errors.__path__[0])).parent


@pytest.mark.parametrize(
    "kind",
    [CatalogError, CommitStateUnknown, BuildError, DiffError, NotClonable, IdentityError]
    + [EngineError, StatementError, StorageError, StreamError],
)
def test_messages_of_errors(kind: type[Exception]) -> None:
    error = kind(TEXT)
    assert "https://…@host/x answered" in str(error)
    assert "hush" not in f"{error} {error!r} {error.args} {reason(error)}"
    assert "hush" not in reason(ValueError(TEXT))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    def collect(message: EventMsg) -> None:
        lines.append(str(message))

    manager = get_event_manager()
    assert isinstance(manager, EventManager)
    manager.callbacks.append(collect)
    yield lines
    manager.callbacks.remove(collect)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_log_lines(logged: list[str], level: str) -> None:
    getattr(Logger(), level)(TEXT)
    assert any("https://…@host/x answered" in line for line in logged)
    assert not any("hush" in line for line in logged)


def test_all_loggers_hide_secrets() -> None:
    own = {SOURCE / "errors" / "logger.py"}
    users = [p for p in SOURCE.rglob("*.py") if "AdapterLogger" in p.read_text()]
    assert set(users) == own


def test_all_errors_of_users_hide_secrets() -> None:
    """Those derived from dbt's, and those whose name says that users see them."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                if "DbtRuntimeError" in bases and bases[0] != "RedactedError":
                    found.append(f"{path.name}: {node.name}")
    assert not found


def test_messages_of_commands() -> None:
    with pytest.raises(click.ClickException) as raised, plain_errors():
        raise OSError(TEXT)
    assert "hush" not in raised.value.message


@pytest.mark.parametrize("kind", [ValueError, OSError, CatalogError, EngineError])
def test_messages_of_the_server(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def calling(token: str) -> Any:
        raise kind(TEXT)

    server = FlightSqlServer.__new__(FlightSqlServer)
    monkeypatch.setattr(server, "_callers", SimpleNamespace(calling=calling), raising=False)
    context = SimpleNamespace(get_middleware=lambda name: SimpleNamespace(value="t"))
    with pytest.raises(flight.FlightError, match="answered") as raised, server._caller(context):
        pass
    assert "hush" not in str(raised.value)


def test_the_address_of_a_repository() -> None:
    for address in ("https://me:hush@host/x", "https://me:8080/hush@host/x"):
        error = _unfetched(["a:b:1"], address, f"Server access error at url {address}/a.pom")
        assert str(error).count("https://…@host/x") == 2
        assert "hush" not in str(error)


def messages() -> Iterator[str]:
    """The text of all errors and log lines in the source, with X for what is inserted."""
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            function = ast.unparse(call.func)
            if not re.search(r"(Error|Conflict|Exception|Unknown|^logger\.\w+)$", function):
                continue
            for node in ast.walk(call):
                if isinstance(node, ast.JoinedStr):
                    parts = node.values
                    yield "".join(
                        str(p.value) if isinstance(p, ast.Constant) else "X" for p in parts
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_own_words_are_not_taken_for_secrets() -> None:
    checked = list(messages())
    assert len(checked) > 500
    assert [text for text in checked if without_secrets(text) != text] == []
    assert without_secrets(CREDENTIALS_REFUSED) == CREDENTIALS_REFUSED
