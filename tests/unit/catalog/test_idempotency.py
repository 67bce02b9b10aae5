"""Commits that are sent again with the same key, to a server that loses its responses."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from dbt.adapters.iceberg_stream.catalog import idempotency
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError, CommitStateUnknown
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable, TableCommit

COMMIT_ALL = "POST /v1/{prefix}/transactions/commit"


class Server:
    """A catalog that answers commits with the given status codes; 0 closes the connection.

    Attributes:
        keys: the idempotency key of each commit that it received.
    """

    def __init__(self, statuses: list[int], config: dict[str, Any]) -> None:
        self.statuses, self.keys = statuses, list[str | None]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, {"defaults": {}, "overrides": {}, **config})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                server.keys.append(self.headers[idempotency.HEADER])
                status = server.statuses.pop(0)
                if status == 0:
                    self.connection.close()
                else:
                    self.answer(status, {"error": {"type": "E", "message": "m", "code": status}})

            def answer(self, status: int, body: dict[str, Any]) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self.http = ThreadingHTTPServer(("localhost", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        uri = f"http://localhost:{self.http.server_address[1]}"
        self.backend = RemoteBackend(CatalogSettings("lake", {"type": "rest", "uri": uri}), None)


@pytest.fixture
def servers() -> Iterator[Any]:
    """Starts servers."""
    started = []

    def start(*statuses: int, **config: Any) -> Server:
        started.append(Server(list(statuses), {"endpoints": [COMMIT_ALL], **config}))
        return started[-1]

    yield start
    for server in started:
        server.http.shutdown()
        server.http.server_close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "wait_random_exponential", lambda **_: lambda _: 0)


def commit(server: Server) -> None:
    """Commit to two tables, and to one."""
    update = SetPropertiesUpdate(updates={"a": "b"})
    table: Any = object()
    bases = [LoadedTable(("s", name), {}, "", table, table) for name in "ab"]
    server.backend.commit_all([TableCommit(base, (), (update,)) for base in bases])
    server.backend.commit(bases[0], (), (update,))


def test_the_same_key_until_there_is_an_answer(servers: Any) -> None:
    server = servers(0, 503, 204, 500, 200, **{idempotency.LIFETIME: "PT30M"})
    commit(server)
    first, second = server.keys[:3], server.keys[3:]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert all(uuid.UUID(key).version == 7 for key in (first[0], second[0]))


def test_refusals_are_final(servers: Any) -> None:
    server = servers(403, **{idempotency.LIFETIME: "PT30M"})
    with pytest.raises(CatalogError, match="m"):
        commit(server)
    assert len(server.keys) == 1


def test_a_server_that_never_answers(servers: Any) -> None:
    server = servers(*[0] * idempotency.ATTEMPTS, **{idempotency.LIFETIME: "PT30M"})
    with pytest.raises(CommitStateUnknown):
        commit(server)
    assert len(server.keys) == idempotency.ATTEMPTS


def test_other_servers_get_each_commit_once(servers: Any) -> None:
    server = servers(502)
    with pytest.raises(CommitStateUnknown):
        commit(server)
    assert server.keys == [None]


def test_uuids_begin_with_the_time() -> None:
    ids = [idempotency.uuid7() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all((i.version, i.variant) == (7, uuid.RFC_4122) for i in ids)
    assert ids[0].int >> 80 <= ids[-1].int >> 80
