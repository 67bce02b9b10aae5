"""One set of properties, two clients."""

from __future__ import annotations

from pyiceberg.io import load_file_io

from dbt.adapters.iceberg_stream.catalog.settings import (
    DELEGATION,
    FILE_IO,
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


def test_metrics_are_reported_only_on_request() -> None:
    name = "spark.sql.catalog.lake.rest-metrics-reporting-enabled"
    assert CatalogSettings("lake", REST).spark()[name] == "false"
    wanted = CatalogSettings("lake", REST | {"rest-metrics-reporting-enabled": "true"})
    assert wanted.spark()[name] == "true"


def test_nothing_ambient_unless_asked_for() -> None:
    own, ambient = (CatalogSettings("lake", REST, ambient=a).pyiceberg() for a in (False, True))
    assert own["py-io-impl"] == ambient["py-io-impl"] == FILE_IO
    assert load_file_io(own).properties["s3.anonymous"] == "true"
    assert "s3.anonymous" not in load_file_io(ambient).properties


def test_vended_keys_come_before_no_keys() -> None:
    assert load_file_io({"py-io-impl": FILE_IO}).properties["s3.anonymous"] == "true"
    vended = {"py-io-impl": FILE_IO, "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    assert "s3.anonymous" not in load_file_io(vended).properties


def test_spark_chooses_the_keys_that_the_catalog_vends() -> None:
    spark = CatalogSettings("lake", REST).spark()
    assert not [name for name in spark if "credentials-provider" in name]


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


def test_a_database_in_the_words_of_both_clients() -> None:
    lake = {"type": "jdbc", "uri": "jdbc:postgresql://db:5432/lake", "warehouse": "s3://lake"}
    settings = CatalogSettings("lake", lake | {"jdbc.user": "ada", "jdbc.password": "p@ss"})
    assert settings.spark()["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://db:5432/lake"
    assert settings.pyiceberg()["uri"] == "postgresql+psycopg2://ada:p%40ss@db:5432/lake"
    file = CatalogSettings("lake", lake | {"uri": "jdbc:sqlite:/lake/c.db?busy_timeout=1"})
    assert file.pyiceberg()["uri"] == "sqlite:////lake/c.db"
