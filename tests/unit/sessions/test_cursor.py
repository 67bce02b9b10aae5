"""Statements whose token ends while they run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import jwt
import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.renewal import Renewal
from dbt.adapters.iceberg_stream.catalog.identity.token import Token, read_token
from dbt.adapters.iceberg_stream.errors.spark import StatementError, describe
from dbt.adapters.iceberg_stream.sessions.cursor import Handle

REFUSED = describe("(org.apache.iceberg.exceptions.NotAuthorizedException) Not authorized: ")
LOST = "Cannot determine whether the commit was successful: Not authorized: "


class Source:
    """Gives a new token of ada's each time."""

    name = "the test"

    def __init__(self, renewable: bool = True) -> None:
        self.renewable = renewable
        self.given = 0

    def changed(self) -> bool:
        return False

    def fetch(self) -> Token:
        self.given += 1
        ends = datetime.now(timezone.utc) + timedelta(hours=1)
        claims = {"sub": "ada", "exp": ends, "jti": str(self.given)}
        return read_token(jwt.encode(claims, "k" * 32))


class Session:
    """Refuses the first statements."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.ran = 0
        self.renewals: list[Mapping[str, str]] = []

    def on_progress(self, handler: Any) -> None: ...

    def configure(self, settings: Mapping[str, str]) -> None: ...

    def renew(self, settings: Mapping[str, str]) -> None:
        self.renewals.append(settings)

    def query(self, sql: str, interpreted: bool = False) -> pa.Table:
        self.ran += 1
        if self.errors:
            raise StatementError(self.errors.pop(0))
        return pa.table({"id": [1]})

    run = query


def handle_of(session: Session, source: Source, lake: IcebergCatalog) -> Handle:
    identity = Identity(source)
    renewal = Renewal(
        {"lake": identity},
        {"lake": identity.token()},
        lambda tokens: {"token": tokens["lake"].value},
    )
    return Handle(session, one_catalog(lake), False, lambda _: None, lambda: None, renewal)  # type: ignore[arg-type]


@pytest.mark.parametrize("sql", ["select 1", "insert into s.t values (1)", "refresh table s.t"])
def test_it_runs_again_with_a_new_token(lake: IcebergCatalog, sql: str) -> None:
    session, source = Session(REFUSED), Source()
    handle_of(session, source, lake).cursor().execute(sql)
    assert session.ran == 2
    (settings,) = session.renewals
    assert jwt.decode(settings["token"], options={"verify_signature": False})["jti"] == "2"


@pytest.mark.parametrize(
    ("errors", "renewable", "runs"),
    [
        ((REFUSED, REFUSED), True, 2),
        ((REFUSED,), False, 1),
        ((LOST,), True, 1),
    ],
    ids=["refused again", "no other token", "perhaps committed"],
)
def test_it_fails_and_says_whose_token_it_was(
    lake: IcebergCatalog, errors: tuple[str, ...], renewable: bool, runs: int
) -> None:
    session = Session(*errors)
    with pytest.raises(StatementError) as raised:
        handle_of(session, Source(renewable), lake).cursor().execute("select 1")
    assert session.ran == runs
    asked = "The request to the catalog was made as ada, whose token expires at 2"
    assert asked in str(raised.value)


def test_a_write_whose_outcome_cannot_be_read_is_not_run_again(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise CatalogError(REFUSED)

    monkeypatch.setattr(lake, "snapshots", refuse)
    session = Session()
    with pytest.raises(CatalogError, match=r"was committed to s\.t, but its snapshot"):
        handle_of(session, Source(), lake).cursor().execute("insert into s.t values (1)")
    assert session.ran == 1


PARTLY = (
    "Cannot delete file where some, but not all, rows match filter ref(name=id) == 1: x.parquet"
)


def test_a_delete_of_files_that_were_compacted_meanwhile_runs_again(
    lake: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    session = Session(PARTLY)
    handle_of(session, Source(), lake).cursor().execute("delete from s.t where id = 1")
    assert session.ran == 2


def test_an_overwrite_of_parts_of_files_fails(lake: IcebergCatalog) -> None:
    session = Session(PARTLY)
    with pytest.raises(StatementError, match="some, but not all"):
        handle_of(session, Source(), lake).cursor().execute("insert overwrite s.t values (1)")
    assert session.ran == 1
