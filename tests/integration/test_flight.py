"""ADBC clients of the Flight SQL server: ingest in all modes, queries, tokens, and aborts."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyiceberg.catalog import Catalog, load_catalog

from dbt.adapters.iceberg_stream.engines.embedded import status, stop
from dbt.adapters.iceberg_stream.flight.messages import pack
from tests.servers.ports import free_port
from tests.servers.rest_catalog import RestCatalog
from tests.servers.spark_cluster import TOKEN, connect_server

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]})


@dataclass
class Served:
    """A running server; `token` opens it, `tables` is where the files are."""

    uri: str
    token: str
    tables: Path
    process: subprocess.Popen[str]

    def connect(self, token: str | None = None, **options: str) -> Any:
        given = {"adbc.flight.sql.authorization_header": f"Bearer {token or self.token}"}
        return adbc.connect(self.uri, db_kwargs=given | options, autocommit=True)


@contextlib.contextmanager
def serve(folder: Path, profile: dict[str, Any], *arguments: str) -> Iterator[tuple[str, Any]]:
    """Run `iceberg-stream serve` for a project with this profile; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dbt_project.yml").write_text("{name: p, profile: p}")
    outputs = {"dev": {"type": "iceberg_stream", "schema": "s", "keep_alive": 120, **profile}}
    (folder / "profiles.yml").write_text(json.dumps({"p": {"target": "dev", "outputs": outputs}}))
    command = [sys.executable, "-m", "dbt.adapters.iceberg_stream", "serve", *arguments]
    with open(folder / "serve.log", "w") as log:
        process = subprocess.Popen(
            [*command, "--project-dir", str(folder)], stdout=log, stderr=log, text=True
        )
    try:
        deadline = time.monotonic() + 60
        while not (actual := re.search(r"at (grpc\S+)", (folder / "serve.log").read_text())):
            assert process.poll() is None, (folder / "serve.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield actual[1], process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def local(engine_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("local")
    profile = {"warehouse": str(folder / "lake"), "engine_home": str(engine_home)}
    with serve(folder, profile) as (uri, process):
        token = re.search(r"accepts is in (.+)", (folder / "serve.log").read_text())
        served = Served(uri, Path(token[1]).read_text(), folder / "lake" / "s", process)
        with served.connect() as connection, connection.cursor() as cursor:
            cursor.execute("create namespace if not exists s")
        yield served


@pytest.fixture(scope="module")
def remote(
    engine_home: Path, catalog: RestCatalog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("remote")
    profile = {
        "engine_home": str(engine_home),
        "catalog_properties": {"uri": catalog.uri, "warehouse": f"file://{catalog.folder}"},
    }
    with serve(folder, profile) as (uri, process):
        served = Served(uri, catalog.token("wanda"), catalog.folder, process)
        with served.connect() as connection, connection.cursor() as cursor:
            cursor.execute("create namespace if not exists s")
        yield served


@pytest.fixture(params=["local", "remote"])
def served(request: pytest.FixtureRequest) -> Served:
    actual: Served = request.getfixturevalue(request.param)
    return actual


def rows(served: Served, sql: str) -> list[tuple[Any, ...]]:
    with served.connect() as connection, connection.cursor() as cursor:
        return cursor.execute(sql).fetchall()


def ingest(served: Served, name: str, mode: str, data: Any = ROWS) -> int:
    with served.connect() as connection, connection.cursor() as cursor:
        count: int = cursor.adbc_ingest(name, data, mode=mode)
        return count


def test_the_four_modes(served: Served) -> None:
    assert ingest(served, "modes", "create") == 2
    assert rows(served, "select * from s.modes order by id") == [(1, "a"), (2, None)]
    with pytest.raises(adbc_driver_manager.Error, match="The table s.modes already exists"):
        ingest(served, "modes", "create")
    assert ingest(served, "modes", "append") == 2
    assert ingest(served, "modes", "create_append") == 2
    assert rows(served, "select count(*), count(name) from s.modes") == [(6, 3)]
    assert ingest(served, "modes", "replace", pa.table({"n": [1.5]})) == 1
    assert rows(served, "select * from s.modes") == [(1.5,)]
    with pytest.raises(adbc_driver_manager.Error, match="The table s.none does not exist"):
        ingest(served, "none", "append")
    with pytest.raises(adbc_driver_manager.Error, match="`n` is string, but the table has double"):
        ingest(served, "modes", "append", pa.table({"n": ["x"]}))
    assert rows(served, "select * from s.modes") == [(1.5,)]


@pytest.mark.parametrize("statement", ["insert into s.kept ", ""])
@pytest.mark.variants(2)
def test_a_statement_that_is_canceled(served: Served, statement: str) -> None:
    ingest(served, "kept", "replace")
    slow = "select count(*), 'x' from range(100000000000) where hash(id) % 7 = 1"
    with served.connect() as connection, connection.cursor() as cursor:
        timer = threading.Timer(3, cursor.adbc_cancel)
        timer.start()
        with pytest.raises(adbc_driver_manager.Error, match="(?i)cancel"):
            cursor.execute(statement + slow)
            cursor.fetchall()
        timer.join()
    # Tasks of another statement would wait for those of this one, which has no end.
    assert rows(served, "select count(*) from s.kept join range(1000000) on true") == [(2000000,)]


def test_a_token_that_has_expired(remote: Served, catalog: RestCatalog) -> None:
    """It is the caller's: no profile of the caller's has it."""
    expired = catalog.token("olga", seconds=-60)
    message = "of olga expired at .*, from the call"
    with (
        pytest.raises(adbc_driver_manager.Error, match=message),
        remote.connect(expired) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select 1")


def test_statements(served: Served) -> None:
    """What is not a query runs when it is executed: nobody has to fetch its rows."""
    ingest(served, "said", "replace")
    with served.connect() as connection, connection.cursor() as cursor:
        cursor.execute("insert into s.said values (3, 'c')")
        assert cursor.rowcount == 1
        assert cursor.fetchall() == []
        with pytest.raises(adbc_driver_manager.Error, match="`s`.`nowhere` cannot be found"):
            cursor.execute("insert into s.nowhere values (3, 'c')")
        assert cursor.executescript("delete from s.said where id = 1") is None
        cursor.execute("insert into s.said select id + 10, name from s.said where id = 3")
        cursor.execute("delete from s.said where id = 13")
        cursor.execute("select id, name from s.said order by id")
        assert cursor.fetch_arrow_table().to_pylist() == [
            {"id": 2, "name": None},
            {"id": 3, "name": "c"},
        ]
        with pytest.raises(adbc_driver_manager.Error, match="TABLE_OR_VIEW_NOT_FOUND"):
            cursor.execute("select * from s.nowhere")
        actual = connection.adbc_get_objects(depth="tables", db_schema_filter="s")
        schemas = actual.read_all().to_pylist()[0]["catalog_db_schemas"]
        assert "said" in [table["table_name"] for table in schemas[0]["db_schema_tables"]]
        schemas = connection.adbc_get_objects(depth="columns", table_name_filter="said")
        tables = schemas.read_all().to_pylist()[0]["catalog_db_schemas"]
        columns = [c for s in tables for t in s["db_schema_tables"] for c in t["table_columns"]]
        assert [column["column_name"] for column in columns] == ["id", "name"]
        actual = connection.adbc_get_table_schema("said", db_schema_filter="s")
        assert actual.names == ["id", "name"]
        assert connection.adbc_get_info()["vendor_name"] == "dbt-iceberg-stream"


def test_statements_stay_within_the_catalog(served: Served, tmp_path: Path) -> None:
    secret = tmp_path / "profiles.yml"
    secret.write_text("password")
    rows(served, "create or replace view s.fine as select '${env:HOME}' as home, 1 as id")
    assert rows(served, "select * from s.fine") == [("${env:HOME}", 1)]
    for sql in (
        f"select * from text.`{secret}`",
        f"create view s.steals as select * from text.`{secret}`",
        "select java_method('java.lang.System', 'getenv', 'HOME')",
        "add jar '/srv/x.jar'",
        "set spark.sql.runSQLOnFiles = true",
    ):
        with (
            pytest.raises(adbc_driver_manager.Error, match="The server refused the statement"),
            served.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql).fetchall()
    # A client may make a ticket of its own.
    header = (b"authorization", f"Bearer {served.token}".encode())
    ticket = pack(
        "TicketStatementQuery", statement_handle=f"select * from text.`{secret}`".encode()
    )
    with flight.connect(served.uri) as client, pytest.raises(flight.FlightUnauthorizedError):
        client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(headers=[header])).read_all()


def test_a_statement_that_needs_too_much_memory(local: Served) -> None:
    """It fails alone: another caller's query on the same engine goes on."""
    with local.connect() as connection, connection.cursor() as cursor:
        cursor.execute("select id from range(3000000)")
        reader = cursor.fetch_record_batch()
        assert reader.read_next_batch().num_rows
        for sql in (
            "select repeat('x', 2000000000) as a",
            "select max(length(array_join(array_repeat(repeat('x', 1000000), 9000), ','))) from "
            "range(100)",
        ):
            with pytest.raises(adbc_driver_manager.Error, match="(?i)memory|heap"):
                rows(local, sql)
        assert sum(batch.num_rows for batch in reader) > 2_000_000
    assert rows(local, "select 1") == [(1,)]


@pytest.mark.slow
def test_an_engine_that_ends(tmp_path: Path) -> None:
    """Queries that wait for their first rows, and new ones, run on the next engine."""
    profile = {"warehouse": str(tmp_path / "lake"), "engine_home": str(tmp_path / "engine")}
    with serve(tmp_path / "p", profile, "--max-statements", "2") as (uri, _):
        log = (tmp_path / "p" / "serve.log").read_text()
        token = Path(re.search(r"accepts is in (.+)", log)[1]).read_text()
        served = Served(uri, token, tmp_path, None)
        rows(served, "create namespace s")
        ingest(served, "kept", "create")
        engine = status(tmp_path / "engine")
        timer = threading.Timer(2, os.kill, (engine.jvm.pid, signal.SIGKILL))
        timer.start()
        slow = "select count(*) from range(3000) a, range(3000) b where a.id % 7 = b.id % 5"
        assert rows(served, slow)[0][0] > 0
        timer.join()
        assert not engine.alive()
        rows(served, "insert into s.kept values (3, 'c')")
        assert rows(served, "select count(*) from s.kept") == [(3,)]
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(served.connect()) for _ in range(3)]
            readers = []
            for stream in streams[:2]:
                cursor = stack.enter_context(stream.cursor())
                readers.append(cursor.execute("select id from range(3000000)"))
                readers[-1].fetchone()
            with (
                pytest.raises(adbc_driver_manager.Error, match="2 statements of this caller"),
                streams[2].cursor() as cursor,
            ):
                cursor.execute("select 1").fetchall()
    stop(tmp_path / "engine")


@pytest.mark.slow
def test_expressions_that_cannot_be_interrupted(tmp_path: Path) -> None:
    """Two of them would hold both cores for good, also after they were canceled."""
    home = tmp_path / "engine"
    profile = {
        "warehouse": str(tmp_path / "lake"), "engine_home": str(home),
        "spark_conf": {"spark.master": "local[2]", "spark.icebergstream.stuckTaskSeconds": "3"},
    }  # fmt: skip
    endless = "select count(*) from range(2) where concat(repeat('a', 60), id) rlike '^(.*a){30}$'"
    with serve(tmp_path / "p", profile, "--max-seconds", "10") as (uri, _):
        log = (tmp_path / "p" / "serve.log").read_text()
        token = Path(re.search(r"accepts is in (.+)", log)[1]).read_text()
        served = Served(uri, token, tmp_path, None)
        assert rows(served, "select count(*) from range(2)") == [(2,)]
        first = status(home)
        with pytest.raises(adbc_driver_manager.Error, match="took longer than 10 s"):
            rows(served, endless)
        deadline = time.monotonic() + 120
        while first.alive():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # A slow machine needs more than one statement's time for the start of another engine.
        while True:
            with contextlib.suppress(adbc_driver_manager.Error):
                assert rows(served, "select count(*) from range(2)") == [(2,)]
                break
            assert time.monotonic() < deadline
    assert "still run 3 s after it was canceled" in "".join(
        path.read_text() for path in home.glob("server.log*")
    )
    stop(home)


@pytest.mark.slow
def test_a_cluster_with_the_guard(catalog: RestCatalog, tmp_path: Path) -> None:
    port = free_port()
    profile = {
        "method": "connect", "host": "localhost", "port": port, "server_token": TOKEN,
        "catalog_properties": {"uri": catalog.uri, "warehouse": f"file://{catalog.folder}"},
    }  # fmt: skip
    with connect_server(tmp_path / "spark", port), serve(tmp_path / "p", profile) as (uri, _):
        served = Served(uri, catalog.token("wanda"), tmp_path, None)
        rows(served, "create namespace if not exists c")
        rows(served, "create or replace table c.t as select 1 as id")
        assert rows(served, "select id from c.t") == [(1,)]
        with pytest.raises(
            adbc_driver_manager.Error, match="does not allow the function `reflect`"
        ):
            rows(served, "select reflect('java.lang.System', 'getenv', 'HOME')")


def test_messages_that_are_not_of_flight_sql_show_no_traceback(served: Served) -> None:
    header = (b"authorization", f"Bearer {served.token}".encode())
    options = flight.FlightCallOptions(headers=[header], timeout=30)
    tickets = [
        pack("CommandStatementIngest", table="x"),
        pack("CommandStatementQuery", query="select 1"),
        pack("CommandGetTables") + b"\xff",
        pack("TicketStatementQuery", statement_handle=b"\xff\xfe"),
        b"\x00\x01",
        b"",
    ]
    with flight.connect(served.uri) as client:
        for ticket in tickets:
            with pytest.raises((flight.FlightError, pa.ArrowException)) as error:
                client.do_get(flight.Ticket(ticket), options).read_all()
            assert "Traceback" not in str(error.value) and ".py" not in str(error.value)
            with pytest.raises((flight.FlightError, pa.ArrowException)) as error:
                list(client.do_action(flight.Action("CreatePreparedStatement", ticket), options))
            assert "Traceback" not in str(error.value) and ".py" not in str(error.value)
        path = flight.FlightDescriptor.for_path("x")
        for call in (
            lambda: client.get_flight_info(path, options),
            lambda: client.do_exchange(path, options)[1].read_all(),
        ):
            with pytest.raises((flight.FlightError, pa.ArrowException)) as error:
                call()
            assert "Traceback" not in str(error.value) and ".py" not in str(error.value)
        # PyArrow itself answers this one, with a traceback that has no path of the server.
        with pytest.raises(pa.ArrowNotImplementedError) as error:
            client.get_schema(path, options)
        assert "iceberg_stream" not in str(error.value)
        assert list(client.list_flights(options=options)) == []
        assert len(client.list_actions(options)) == 2


def client_of(served: Served, catalog: RestCatalog) -> Catalog:
    """PyIceberg's client of the served catalog, for one who may write any metadata."""
    if served.tables == catalog.folder:
        return load_catalog("lake", type="rest", uri=catalog.uri, token=catalog.token("wanda"))
    warehouse = served.tables.parent
    return load_catalog(
        "lake",
        type="sql",
        uri=f"sqlite:///{warehouse}/catalog.db",
        warehouse=f"file://{warehouse}",
        init_catalog_tables="false",
    )


def test_tables_of_other_files(served: Served, catalog: RestCatalog, tmp_path: Path) -> None:
    """A caller's own table names files that only the server's account can read."""
    secret = pa.table({"name": ["secret of the host"]})
    pq.write_table(secret, tmp_path / "secret.parquet")
    (tmp_path / "decoy").mkdir()
    owner, unique = client_of(served, catalog), tmp_path.name.replace("-", "_")
    spy = owner.create_table(("s", f"spy_{unique}"), secret.schema)
    spy.add_files([f"file://{tmp_path}/secret.parquet"])
    moved = owner.create_table(
        ("s", f"moved_{unique}"), secret.schema, location=f"file://{tmp_path}/decoy"
    )
    moved.append(secret)
    for statement in (
        f"select * from s.spy_{unique}",
        f"select count(*) from s.spy_{unique} where name like 's%'",
        f"insert into s.copy_{unique} select * from s.spy_{unique}",
        f"delete from s.spy_{unique} where name like '%host'",
        f"select * from s.moved_{unique}",
        f"insert into s.moved_{unique} values ('x')",
    ):
        with pytest.raises(adbc_driver_manager.Error) as raised:
            rows(served, statement)
        assert "secret of the host" not in str(raised.value)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(adbc_driver_manager.Error, match="outside the catalog's warehouse"):
        ingest(served, f"moved_{unique}", "append", secret)
    assert sorted(tmp_path.rglob("*")) == before


def test_tables_that_name_code(served: Served, catalog: RestCatalog) -> None:
    owner = client_of(served, catalog)
    name = f"coded_{served.tables.name}"
    properties = {"write.location-provider.impl": "java.lang.ProcessBuilder"}
    owner.create_table(("s", name), pa.schema([("id", pa.int64())]), properties=properties)
    with pytest.raises(adbc_driver_manager.Error, match="names code to run"):
        rows(served, f"select * from s.{name}")


@pytest.mark.parametrize("name", ["../../../x", "..", "a/b"])
def test_names_that_leave_the_warehouse(served: Served, name: str) -> None:
    for table, schema in ((name, "s"), ("t", name)):
        with (
            served.connect() as connection,
            connection.cursor() as cursor,
            pytest.raises(adbc_driver_manager.Error, match="cannot be the name of a"),
        ):
            cursor.adbc_ingest(table, ROWS, mode="create", db_schema_name=schema)


def test_a_statement_is_run_once(local: Served) -> None:
    ingest(local, "once", "replace")
    before = len(list(local.tables.joinpath("once", "metadata").glob("snap-*.avro")))
    rows(local, "insert into s.once values (3, 'c')")
    after = len(list(local.tables.joinpath("once", "metadata").glob("snap-*.avro")))
    assert after == before + 1
    assert rows(local, "select count(*) from s.once") == [(3,)]


def test_many_rows_come_and_go(local: Served) -> None:
    ids = pa.table({"id": pa.array(range(500_000), pa.int64())})
    assert ingest(local, "many", "create", ids.to_reader(max_chunksize=1000)) == 500_000
    with local.connect() as connection, connection.cursor() as cursor:
        reader = cursor.execute("select id from s.many").fetch_record_batch()
        assert sum(batch.num_rows for batch in reader) == 500_000


def test_wrong_tokens(served: Served) -> None:
    for token in ("wrong", "a.b.c"):
        with (
            pytest.raises(adbc_driver_manager.Error, match="UNAUTHENTICATED|Unauthenticated"),
            served.connect(token) as connection,
            connection.cursor() as cursor,
        ):
            cursor.adbc_ingest("stolen", ROWS, mode="create")
    with (
        pytest.raises(adbc_driver_manager.Error, match="has no bearer token"),
        adbc.connect(served.uri, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("select 1")
    assert not list(served.tables.rglob("stolen*"))


def test_a_reader_reads_and_does_not_write(remote: Served, catalog: RestCatalog) -> None:
    ingest(remote, "guarded", "replace")
    reader = catalog.token("rita", role="reader")
    with remote.connect(reader) as connection, connection.cursor() as cursor:
        assert cursor.execute("select count(*) from s.guarded").fetchone() == (2,)
        for mode in ("append", "replace", "create_append"):
            with pytest.raises(adbc_driver_manager.Error, match="refused to .* for rita"):
                cursor.adbc_ingest("guarded", ROWS, mode=mode)
        with pytest.raises(adbc_driver_manager.Error, match="refused|not allowed"):
            cursor.execute("delete from s.guarded where id = 1").fetchall()
    assert rows(remote, "select count(*) from s.guarded") == [(2,)]
    files = list((catalog.folder / "warehouse" / "s" / "guarded").rglob("ingest-*.parquet"))
    assert len(files) == 1


CLIENT = """
import sys, time, pyarrow as pa, adbc_driver_flightsql.dbapi as adbc
uri, token, table = sys.argv[1:]
def endless():
    while True:
        yield pa.record_batch({"id": pa.array(range(100_000), pa.int64())})
        print("sent", flush=True)
schema = pa.schema([("id", pa.int64())])
header = {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
with adbc.connect(uri, db_kwargs=header) as connection, connection.cursor() as cursor:
    cursor.adbc_ingest(table, pa.RecordBatchReader.from_batches(schema, endless()), mode="create")
"""


def test_a_client_that_is_killed(local: Served) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, local.uri, local.token, "gone"],
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(200):
        assert client.stdout.readline() == "sent\n"
    client.send_signal(signal.SIGKILL)
    client.communicate()
    folder = local.tables / "gone"
    deadline = time.monotonic() + 30
    while list(folder.rglob("*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert ingest(local, "gone", "create") == 2


@pytest.mark.slow
def test_a_server_that_is_killed_shows_nothing(engine_home: Path, tmp_path: Path) -> None:
    profile = {"warehouse": str(tmp_path / "lake"), "engine_home": str(engine_home)}
    os.environ["ICEBERG_STREAM_SERVER_TOKEN"] = "mine"
    try:
        with serve(tmp_path / "p", profile) as (uri, process):
            served = Served(uri, "mine", tmp_path, process)
            rows(served, "create namespace s")
            command = [sys.executable, "-c", CLIENT, uri, "mine", "lost"]
            client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(100):
                client.stdout.readline()
            process.kill()
            client.communicate(timeout=60)
            assert client.returncode != 0
        with serve(tmp_path / "p", profile) as (uri, process):
            served = Served(uri, "mine", tmp_path, process)
            with pytest.raises(adbc_driver_manager.Error, match="TABLE_OR_VIEW_NOT_FOUND"):
                rows(served, "select * from s.lost")
    finally:
        del os.environ["ICEBERG_STREAM_SERVER_TOKEN"]


def test_tls(engine_home: Path, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    profile = {"warehouse": str(tmp_path / "lake"), "engine_home": str(engine_home)}
    options = ("--tls-cert", str(chain), "--tls-key", str(key), "--host", "localhost")
    with serve(tmp_path / "p", profile, *options) as (uri, process):
        log = (tmp_path / "p" / "serve.log").read_text()
        token = Path(re.search(r"accepts is in (.+)", log)[1]).read_text()
        served = Served(uri, token, tmp_path, process)
        root = {"adbc.flight.sql.client_option.tls_root_certs": chain.read_text()}
        with served.connect(**root) as connection, connection.cursor() as cursor:
            assert cursor.execute("select 1 as one").fetchone() == (1,)
        with pytest.raises(adbc_driver_manager.Error):
            rows(served, "select 1")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of `localhost` that nobody else has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    chain, private = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return chain, private
