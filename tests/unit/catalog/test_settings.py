"""One set of properties, two clients."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.catalog.settings import (
    ANONYMOUS,
    DELEGATION,
    CatalogSettings,
    secret_properties,
)

REST = {"type": "rest", "uri": "https://c.example", "warehouse": "w", "s3.region": "eu-west-1"}


def test_both_clients_get_what_the_profile_says_once() -> None:
    settings = CatalogSettings("lake", REST)
    spark, pyiceberg = settings.spark("t"), settings.pyiceberg()
    assert spark["spark.sql.catalog.lake.uri"] == pyiceberg["uri"] == "https://c.example"
    assert spark["spark.sql.catalog.lake.client.region"] == pyiceberg["s3.region"] == "eu-west-1"
    assert spark[f"spark.sql.catalog.lake.{DELEGATION}"] == "vended-credentials"
    assert spark["spark.sql.catalog.lake.cache-enabled"] == "false"
    assert spark["spark.sql.catalog.lake.token"] == "t"
    assert "token" not in pyiceberg


def test_nothing_ambient_unless_asked_for() -> None:
    key = "spark.sql.catalog.lake.client.credentials-provider"
    assert CatalogSettings("lake", REST).spark()[key] == ANONYMOUS
    assert CatalogSettings("lake", REST).pyiceberg()["s3.anonymous"] == "true"
    assert key not in CatalogSettings("lake", REST, ambient=True).spark()
    keys = REST | {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    assert key not in CatalogSettings("lake", keys).spark()


def test_the_user_has_the_last_word() -> None:
    settings = CatalogSettings("lake", REST | {DELEGATION: "remote-signing"})
    assert settings.spark()[f"spark.sql.catalog.lake.{DELEGATION}"] == "remote-signing"


def test_secrets_are_not_shown() -> None:
    secret = {
        "s3.secret-access-key": "hush",
        "header.Authorization": "hush",
        "header.X-Api-Key": "hush",
        "adls.auth.shared-key.account.key": "hush",
        "adls.connection-string.shop": "hush",
    }
    assert "hush" not in repr(CatalogSettings("lake", REST | secret))
    assert sorted(secret_properties(REST | secret)) == sorted(secret)
