from __future__ import annotations

from pathlib import Path
from typing import Any

import jwt
import pytest
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.flight.serve import open_server
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.profile.factory import engine_settings, session_settings

REST = {"type": "rest", "uri": "https://catalog"}


def parse(**keys: Any) -> IcebergStreamCredentials:
    data = IcebergStreamCredentials.translate_aliases(keys)
    IcebergStreamCredentials.validate(data)
    return IcebergStreamCredentials.from_dict(data)


def test_a_schema_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CI", "true")
    actual = parse(schema="s")
    assert (actual.database, actual.method, actual.keep_alive) == ("lake", "embedded", 0)
    assert actual.warehouse_path(tmp_path) == (tmp_path / "lakehouse").resolve()
    assert actual.engine_path(tmp_path) == (tmp_path / ".iceberg_stream").resolve()


def test_catalog_is_another_word_for_database() -> None:
    assert parse(schema="s", catalog="prod").database == "prod"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "`schema` is missing"),
        ({"schema": "s", "warehous": "x"}, "unknown key `warehous`: did you mean `warehouse`"),
        ({"schema": "s", "database": "a-b"}, "`database` must be a catalog name"),
        ({"schema": "s", "build_summary": "no"}, "`build_summary` must be true or false; got 'no'"),
        (
            {"schema": "s", "small_table_rows": -1},
            "`small_table_rows` must be a number of rows, or 0; got -1",
        ),
        ({"schema": "s", "keep_alive": -1}, "`keep_alive` must be a number of seconds; got -1"),
        ({"schema": "s", "driver_memory": "2 gigs"}, "such as 2g or 1500m; got"),
        ({"schema": "s", "spark_conf": "x"}, "`spark_conf` must be a mapping"),
        ({"schema": "s", "kafka": {"shop": "a:1"}}, "`kafka` must be a mapping of connections"),
        ({"schema": "s", "postgres": {"a": 1}}, "`postgres` must be a mapping of connections"),
        ({"schema": "s", "method": "cluster"}, "must be one of embedded, connect"),
        ({"schema": "s", "method": "connect"}, "`host` is missing"),
        ({"schema": "s", "method": "connect"}, "`catalog_properties` is missing"),
        (
            {"schema": "s", "method": "connect", "host": "h", "server_token": "t"},
            "set `use_ssl: true`",
        ),
        ({"schema": "s", "catalog_properties": {"type": "rest"}}, "uri` is missing"),
        (
            {"schema": "s", "catalog_properties": {"type": "papers"}},
            "`catalog_properties: type` must be one of rest",
        ),
        ({"schema": "s", "catalog_properties": REST | {"token": "t"}}, "use the profile's `token`"),
        (
            {"schema": "s", "catalog_properties": {"type": "jdbc", "uri": "postgresql://db/lake"}},
            "must begin with `jdbc:`",
        ),
        *(
            (
                {"schema": "s", "catalog_properties": REST | {"uri": uri}},
                "`catalog_properties: uri` contains a password",
            )
            for uri in (
                "jdbc:mysql://me:pw@db/lake",
                "https://me:p/w@catalog/api",
                "jdbc:oracle:thin:me/pw@db:1521:x",
                "jdbc:sqlserver://db;user=me;pwd=x",
                "https://catalog/api?api_key=x",
                "jdbc:postgresql://db/lake?user=me&sslpassword=x",
            )
        ),
        ({"schema": "s", "token": "t"}, "`token` needs a catalog"),
        ({"schema": "s", "catalog_properties": REST, "token": ""}, "`token` is empty"),
        (
            {"schema": "s", "catalog_properties": REST, "token": "t", "token_file": "f"},
            "`token`, `token_file` contradict each other",
        ),
        (
            {"schema": "s", "catalog_properties": REST, "oauth2": {"client_id": "me"}},
            "`oauth2: client_secret` is missing",
        ),
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


def test_debug_shows_the_principal_and_no_secret() -> None:
    token = jwt.encode({"sub": "ada", "exp": 4_000_000_000}, "k" * 32)
    secret = {
        "s3.secret-access-key": "hush",
        "s3.proxy-uri": "http://me:hush@proxy:8080",
        "oauth2-server-uri": "https://login/x?client_secret=hush&scope=all",
    }
    actual = parse(schema="s", catalog_properties=REST | secret, token=token)
    shown = dict(actual.connection_info())
    assert shown["principal"] == "ada"
    assert shown["token expires"].startswith("2096-")
    assert shown["catalog uri"] == "https://catalog"
    assert shown["catalog s3.proxy-uri"] == "http://…@proxy:8080"
    assert shown["catalog oauth2-server-uri"] == "https://login/x?client_secret=…&scope=all"
    everything = f"{actual!r} {shown} {dict(actual.connection_info(with_aliases=True))}"
    assert token not in everything
    assert "hush" not in everything


def test_jinja_runs_no_command(tmp_path: Path) -> None:
    # dbt makes `target` anew for every macro that it parses.
    command = f"touch {tmp_path / 'ran'}"
    actual = parse(schema="s", catalog_properties=REST, token_command=command)
    assert dict(actual.connection_info(with_aliases=True))["schema"] == "s"
    assert not (tmp_path / "ran").exists()


def test_a_token_file_is_relative_to_the_project(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque")
    identity = parse(schema="s", catalog_properties=REST, token_file="token").identity(tmp_path)
    assert identity is not None
    assert identity.token().value == "opaque"


@pytest.mark.parametrize(
    ("token", "log", "hidden"),
    [
        ({"token": "hush"}, True, {"token", "header.X-Api-Key"}),
        ({}, True, {"header.X-Api-Key"}),
        ({"token": "hush"}, False, set()),
    ],
)
def test_the_event_log_hides_what_the_server_knows(
    tmp_path: Path, token: dict[str, str], log: bool, hidden: set[str]
) -> None:
    catalog = REST | {"header.X-Api-Key": "hush"}
    conf = {"spark.eventLog.enabled": log}
    actual = parse(schema="s", catalog_properties=catalog, spark_conf=conf, **token)
    given = dict(engine_settings(actual, tmp_path).spark_conf)
    assert "hush" not in given.values()
    secret = {f"spark.sql.catalog.lake.{name}" for name in ("token", "header.X-Api-Key")}
    assert secret & given.keys() == {f"spark.sql.catalog.lake.{name}" for name in hidden}


NORTH = {"catalog_properties": REST, "token": "t"}


@pytest.mark.parametrize(
    ("catalogs", "message"),
    [
        (["north"], "`catalogs` must be a mapping of names to catalogs"),
        ({"north": "http://catalog"}, "`catalogs` must be a mapping of names to catalogs"),
        ({"a-b": NORTH}, "`catalogs: a-b`: the name must have only letters, digits and _"),
        ({"LAKE": NORTH}, "`catalogs: LAKE`: the name is that of the profile's own catalog"),
        (
            {"spark_catalog": NORTH},
            "`catalogs: spark_catalog`: the name is that of Spark's own catalog",
        ),
        ({"a": NORTH, "A": NORTH}, "`catalogs: A`: the name is that of the catalog `a`"),
        ({"north": NORTH | {"tokn": "t"}}, "`catalogs: north`: unknown key `tokn`: did you mean"),
        ({"north": {}}, "`catalogs: north`: `catalog_properties` is missing; or set `warehouse`"),
        ({"north": {"token": "t"}}, "`catalogs: north`: `token` needs a catalog"),
        ({"north": NORTH | {"token_file": "f"}}, "`token`, `token_file` contradict each other"),
        (
            {"north": {"catalog_properties": {"type": "rest"}}},
            "`catalogs: north`: .*uri. is missin",
        ),
    ],
)
def test_errors_of_further_catalogs(catalogs: Any, message: str) -> None:
    with pytest.raises(DbtRuntimeError, match=message):
        parse(schema="s", catalogs=catalogs)


def test_further_catalogs(tmp_path: Path) -> None:
    """Each has its own address and token; a session has the profile's own as its default."""
    south = {"warehouse": "files"}
    actual = parse(schema="s", token="own", catalog_properties=REST, catalogs={"north": NORTH})
    actual.add_catalog("south", south)
    north = actual.other_catalogs()[0].identity(tmp_path)
    own = actual.identity(tmp_path)
    assert north is not None
    assert own is not None
    tokens = {"lake": own.token(), "north": north.token()}
    settings = session_settings(actual.all_catalogs(), tmp_path, tokens)
    prefix = "spark.sql.catalog"
    assert settings["spark.sql.defaultCatalog"] == "lake"
    assert settings[f"{prefix}.lake.token"] == "own"
    assert settings[f"{prefix}.north.token"] == "t"
    assert f"{prefix}.south.token" not in settings
    assert str(tmp_path / "files") in settings[f"{prefix}.south.warehouse"]
    with pytest.raises(DbtRuntimeError, match="`catalogs: north` of the profile defines it, too"):
        actual.add_catalog("north", NORTH)
    with pytest.raises(DbtRuntimeError, match="The catalog `west` of catalogs.yml has errors"):
        actual.add_catalog("west", {"uri": "http://west"})


def test_secrets_of_further_catalogs_are_hidden() -> None:
    properties = REST | {"s3.secret-access-key": "hush"}
    catalogs = {"north": {"catalog_properties": properties, "token": "quiet"}}
    actual = parse(schema="s", catalogs=catalogs)
    shown = dict(actual.connection_info())
    assert shown["north: catalog uri"] == "https://catalog"
    assert not {"hush", "quiet"} & {str(value) for value in shown.values()}
    assert "hush" not in repr(actual)
    assert "quiet" not in repr(actual.other_catalogs())


OAUTH2 = {"token_uri": "http://login", "client_id": "me", "client_secret": "hush"}
PLAIN = {"type": "rest", "uri": "http://catalog"}
CONNECT = {"method": "connect", "host": "spark", "catalog_properties": REST}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"catalog_properties": PLAIN, "token": "hush"}, "`catalog_properties: uri` .*`token`"),
        ({"catalog_properties": PLAIN, "token_file": "f"}, "`catalog_properties: uri`"),
        ({"catalog_properties": PLAIN | {"header.X-Api-Key": "hush"}}, "`header.X-Api-Key`"),
        ({"catalog_properties": PLAIN | {"rest.sigv4-enabled": True}}, "`rest.sigv4-enabled`"),
        ({"catalog_properties": REST, "oauth2": OAUTH2}, "`oauth2: token_uri` would get"),
        (
            {"catalogs": {"n": {"catalog_properties": PLAIN, "token": "hush"}}},
            "`catalogs: n`: .*uri",
        ),
        (CONNECT | {"token": "hush"}, "`token` would be sent to the Spark Connect server spark"),
        (CONNECT | {"token_command": "t"}, "`token_command` would be sent"),
        (CONNECT | {"catalog_properties": REST | {"s3.secret-access-key": "hush"}}, "s3.secret"),
        (CONNECT | {"catalogs": {"n": NORTH}}, "`token` would be sent"),
        (CONNECT | {"kafka": {"shop": {"sasl.password": "hush"}}}, "kafka: sasl.password"),
        (CONNECT | {"token": "hush", "host": "localhost.evil.com"}, "`token` would be sent"),
        ({"maven_repository": "http://mirror"}, "`maven_repository` does not use TLS"),
    ],
)
def test_secrets_without_tls(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DbtRuntimeError, match=message) as raised:
        parse(schema="s", **keys)
    assert "hush" not in str(raised.value)
    assert "allow_plaintext: true" in str(raised.value)
    allowed = {"allow_plaintext": True}
    catalogs = {name: keys | allowed for name, keys in keys.get("catalogs", {}).items()}
    parse(schema="s", **keys | allowed | ({"catalogs": catalogs} if catalogs else {}))


@pytest.mark.parametrize(
    "keys",
    [
        {"catalog_properties": PLAIN},
        {"catalog_properties": PLAIN | {"uri": "http://127.0.0.1:8181"}, "token": "t"},
        CONNECT,
        CONNECT | {"host": "localhost", "token": "t"},
        CONNECT | {"host": "::1", "token": "t"},
        CONNECT | {"use_ssl": True, "token": "t", "server_token": "u"},
        {"maven_repository": "http://localhost:8080"},
    ],
)
def test_what_needs_no_tls(keys: dict[str, Any]) -> None:
    parse(schema="s", **keys)


def test_a_catalog_of_catalogs_yml_without_tls() -> None:
    actual = parse(schema="s", **CONNECT)
    with pytest.raises(DbtRuntimeError, match="`token` would be sent to the Spark Connect server"):
        actual.add_catalog("north", NORTH)


SIGNED = REST | {"s3.remote-signing-enabled": True}


@pytest.mark.parametrize(
    "properties", [SIGNED, REST | {"header.X-Iceberg-Access-Delegation": "remote-signing"}]
)
def test_signatures_that_users_would_share(properties: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DbtRuntimeError, match="caches signatures for all users"):
        parse(schema="s", **CONNECT | {"use_ssl": True, "catalog_properties": properties})
    embedded = parse(schema="s", catalog_properties=properties)
    with (
        pytest.raises(CatalogError, match="caches signatures for all callers"),
        open_server(embedded, tmp_path, "127.0.0.1", 0),
    ):
        pass


def test_errors_of_a_profile_show_no_secret() -> None:
    keys = {"driver_memory": "https://me:hush@host", "result_cache": "token=hush"}
    with pytest.raises(DbtRuntimeError, match="`driver_memory` must be") as raised:
        parse(schema="s", **keys)
    assert "hush" not in str(raised.value)
