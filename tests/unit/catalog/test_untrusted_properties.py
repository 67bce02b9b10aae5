"""What the owner of a table writes into its properties configures none of its readers' clients."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from dbt.adapters.iceberg_stream.catalog import client_properties
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.storage import StorageError, catalog_io
from dbt.adapters.iceberg_stream.catalog.tables import as_json
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
NAME = ("s", "t")
# Each names code that a client would run, or another place for its requests and its credentials.
HOSTILE = {
    "py-io-impl": f"{__name__}.attack",
    "write.py-location-provider.impl": f"{__name__}.attack",
    "s3.retry-strategy-impl": f"{__name__}.attack",
    "s3.endpoint": "http://evil.example",
    "s3.access-key-id": "theirs",
    "s3.secret-access-key": "theirs",
    "s3.signer": "S3V4RestSigner",
    "s3.signer.uri": "http://evil.example",
    "s3.anonymous": "false",
    "s3.proxy-uri": "http://evil.example",
    "client.region": "theirs",
    "auth.type": "custom",
    "auth.impl": f"{__name__}.attack",
    "gcs.service.host": "http://evil.example",
    "adls.account-host": "evil.example",
    "token": "theirs",
    "uri": "http://evil.example",
    "warehouse": "s3://theirs",
    "DEFAULT_SCHEME": "s3",
}
ran: list[Any] = []


def attack(*arguments: Any) -> Any:
    """Stand for any Python callable that a property could name."""
    ran.append(arguments)
    raise RuntimeError("the property of a table ran code")


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert not ran


def metadata_of(location: str, properties: dict[str, str]) -> dict[str, Any]:
    metadata = new_table_metadata(
        SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, properties
    )
    return dict(as_json(metadata))


class RestServer(BaseHTTPRequestHandler):
    """A catalog with one table, whose location is `s3://b/t`."""

    config: dict[str, str] = {}
    overrides: dict[str, str] = {}
    storage_credentials: list[dict[str, Any]] = []
    location: str | None = "s3://b/t/metadata/1.metadata.json"

    def do_GET(self) -> None:
        if self.path.startswith("/v1/config"):
            self.answer({"defaults": {}, "overrides": self.overrides})
        elif "/tables/" in self.path:
            self.answer(self.table())
        else:
            self.answer({"error": {"message": "", "type": "", "code": 404}}, 404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.table())

    def table(self) -> dict[str, Any]:
        return {
            "metadata-location": self.location,
            "metadata": metadata_of("s3://b/t", HOSTILE),
            "config": self.config,
            "storage-credentials": self.storage_credentials,
        }

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[type[RestServer]]:
    class Handler(RestServer):
        uri = ""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    Handler.uri = f"http://127.0.0.1:{listening.server_port}"
    yield Handler
    listening.shutdown()
    listening.server_close()


def rest(server: Any, ambient: bool = False, **properties: str) -> IcebergCatalog:
    all_properties = {"type": "rest", "uri": server.uri, **properties}
    settings = CatalogSettings("lake", all_properties, ambient)
    return IcebergCatalog("lake", RemoteBackend(settings, None))


def foreign(properties: dict[str, str]) -> set[tuple[str, str]]:
    """What a client has of the hostile properties."""
    return set(properties.items()) & set(HOSTILE.items())


@pytest.mark.parametrize("ambient", [False, True])
@pytest.mark.parametrize("history", [False, True])
def test_a_loaded_table_of_a_rest_catalog(server: Any, history: bool, ambient: bool) -> None:
    table = rest(server, ambient).load(NAME, history)
    assert table is not None
    assert table.metadata["properties"].keys() >= HOSTILE.keys()  # it remains the owner's
    assert not foreign(table.io.properties)
    assert WriteTarget.of(table.metadata, table.io).locations.new_data_location("x")


def test_a_staged_table_of_a_rest_catalog(server: Any) -> None:
    table = rest(server).stage(NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    assert not foreign(table.io.properties)


def test_what_the_catalog_vends_reaches_the_client(server: Any) -> None:
    server.overrides = {"s3.region": "eu-west-1"}
    server.config = {"s3.access-key-id": "all", "s3.endpoint": "https://s3.example"}
    vended = {"s3.access-key-id": "vended", "s3.secret-access-key": "secret"}
    server.storage_credentials = [{"prefix": "s3://b/t", "config": vended}]
    table = rest(server).load(NAME)
    assert table is not None
    properties = table.io.properties
    assert properties["s3.access-key-id"] == "vended"
    assert properties["s3.endpoint"] == "https://s3.example"
    assert properties["s3.region"] == "eu-west-1"
    assert "s3.anonymous" not in properties


@pytest.mark.parametrize("where", ["overrides", "config"])
def test_a_catalog_names_no_code_either(server: Any, where: str) -> None:
    code = {name: value for name, value in HOSTILE.items() if name.endswith("impl")}
    setattr(server, where, code)
    table = rest(server).load(NAME)
    assert table is not None
    table.io.new_input("file:///dev/null")
    assert not foreign(table.io.properties)


def test_signatures_that_callers_would_share(server: Any) -> None:
    server.config = {"s3.remote-signing-enabled": "true"}
    assert rest(server).load(NAME) is not None
    shared = CatalogSettings("lake", {"type": "rest", "uri": server.uri}, confined=True)
    lake = IcebergCatalog("lake", RemoteBackend(shared, None))
    for read in (lake.load, lake.metadata, lake.table):
        with pytest.raises(CatalogError, match="caches signatures for all users"):
            read(NAME)


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteBackend:
    backend = SqliteBackend("lake", tmp_path / "lake")
    backend.create_namespace("s")
    folder = tmp_path / "lake" / "s" / "t" / "metadata"
    folder.mkdir(parents=True)
    file = folder / "00001-a.metadata.json"
    file.write_text(json.dumps(metadata_of(f"file://{folder.parent}", HOSTILE)))
    backend.register("s", "t", f"file://{file}")
    return backend


def test_a_table_of_a_sqlite_catalog(sqlite: SqliteBackend) -> None:
    lake = IcebergCatalog("lake", sqlite)
    table = lake.load(NAME)
    assert table is not None
    assert not foreign(table.io.properties)
    assert not foreign(lake.table(NAME).io.properties)
    lake.commit(table, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    drop_table(lake, NAME)
    assert lake.load(NAME) is None


def jdbc(sqlite: SqliteBackend, tmp_path: Path) -> IcebergCatalog:
    uri = f"jdbc:sqlite:{tmp_path}/lake/catalog.db"
    properties = {"type": "jdbc", "uri": uri, "warehouse": f"file://{tmp_path}/lake"}
    return IcebergCatalog("lake", RemoteBackend(CatalogSettings("lake", properties), None))


def test_a_table_of_another_catalog(sqlite: SqliteBackend, tmp_path: Path) -> None:
    lake = jdbc(sqlite, tmp_path)
    table = lake.load(NAME)
    assert table is not None
    assert not foreign(table.io.properties)
    # PyIceberg would ask the property's callable where to write the metadata.
    with pytest.raises(CatalogError, match=r"s\.t.*write\.py-location-provider\.impl"):
        lake.commit(table, (), (SetPropertiesUpdate(updates={"a": "b"}),))


def test_metadata_read_without_a_table(sqlite: SqliteBackend) -> None:
    assert IcebergCatalog("lake", sqlite).metadata(NAME) is not None
    with pytest.raises(NoSuchTableError):
        IcebergCatalog("lake", sqlite).table(("s", "missing"))


@pytest.mark.parametrize(
    "variables",
    [{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "mine"}],
)
@pytest.mark.parametrize(
    "properties",
    [{}, {"s3.access-key-id": ""}, {"s3.anonymous": "false"}, {"s3.role-arn": "arn:aws:iam::1:r"}],
)
def test_no_keys_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], properties: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **given: seen.append(given))
    catalog_io({"s3.region": "x", **properties}, "s3://b/t").new_input("s3://b/t/x")
    assert seen[0]["anonymous"]
    assert not seen[0]["access_key"] and "role_arn" not in seen[0]


def test_no_login_of_the_machine_at_google(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("pyarrow.fs.GcsFileSystem", lambda **given: seen.append(given))
    catalog_io({}, "gs://b/t").new_input("gs://b/t/x")
    catalog_io({"gcs.oauth2.token": "vended"}, "gs://b/t").new_input("gs://b/t/x")
    assert seen[0] == {"anonymous": True}
    assert seen[1] == {"access_token": "vended"}


def test_no_login_of_the_machine_at_microsoft() -> None:
    with pytest.raises(StorageError, match="vends no storage credentials"):
        catalog_io({"adls.account-name": "a"}, "abfss://c@a.dfs.core.windows.net/t").new_input(
            "abfss://c@a.dfs.core.windows.net/t/x"
        )


def test_a_profile_may_still_choose_its_own_client(server: Any) -> None:
    table = rest(server, **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}).load(NAME)
    assert table is not None
    assert type(table.io).__name__ == "FsspecFileIO"
    assert not foreign(table.io.properties)


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (r"\bload_file_io\(|\bPyArrowFileIO\(\w|\bFsspecFileIO\(", {"catalog/storage.py"}),
        (r"\bload_location_provider\(", {"catalog/client_properties.py"}),
        (r"AVAILABLE_CATALOGS\[|\bload_catalog\(", {"catalog/remote.py"}),
    ],
)
def test_one_place_makes_the_clients(words: str, modules: set[str]) -> None:
    root = Path(client_properties.__file__).parents[1]
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(words, re.sub(r"def load_file_io\(", "", path.read_text()))
    }
    assert found == modules


def test_a_server_without_the_place_of_the_metadata(server: Any) -> None:
    """All its tables would count as one."""
    server.location = None
    with pytest.raises(CatalogError, match=r"where the metadata file of s\.t is"):
        rest(server).load(("s", "t"))
