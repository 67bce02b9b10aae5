"""Messages name addresses, and no secrets in them."""

from __future__ import annotations

import pytest
from pyiceberg.exceptions import ServerError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.errors.spark import describe


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:hush@catalog:8181/api", "https://…@catalog:8181/api"),
        ("https://me:hu/sh@catalog/api", "https://…@catalog/api"),
        ("https://hush@catalog", "https://…@catalog"),
        ("jdbc:oracle:thin:me/hush@//db:1521/x", "jdbc:oracle:thin:…@//db:1521/x"),
        (
            "jdbc:mysql://db/x?user=me&password=hush&ssl=1",
            "jdbc:mysql://db/x?user=me&password=…&ssl=1",
        ),
        ("jdbc:sqlserver://db;pwd=hush;a=b", "jdbc:sqlserver://db;pwd=…;a=b"),
        ("https://a/b?X-Amz-Signature=hush&sig=hush", "https://a/b?X-Amz-Signature=…&sig=…"),
        ("https://catalog:8181/v1/me@here", "https://catalog:8181/v1/me@here"),
        (
            "abfss://box@account.dfs.core.windows.net/x",
            "abfss://box@account.dfs.core.windows.net/x",
        ),
        ("s3://bucket/part_key=7/a@b", "s3://bucket/part_key=7/a@b"),
    ],
)
def test_addresses(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert without_secrets(f"('{address}') failed") == f"('{shown}') failed"


def test_messages_of_catalogs_and_of_spark() -> None:
    uri = "https://me:hush@catalog/api"
    names = RemoteBackend(CatalogSettings("lake", {"type": "rest", "uri": uri}), None)
    with pytest.raises(CatalogError) as raised, names._refusals("read s.t"):
        raise ServerError(f"no answer of {uri}")
    assert str(raised.value).count("https://…@catalog/api") == 2
    assert "hush" not in str(raised.value)
    assert "hush" not in describe(f"Cannot connect to {uri}")
