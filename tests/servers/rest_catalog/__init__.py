"""Iceberg's reference REST catalog behind bearer tokens, as a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import jwt
import platformdirs
import pytest
from filelock import FileLock

from tests.servers.ports import free_port, wait_for

SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class RestCatalog:
    """A running catalog server."""

    port: int
    folder: Path
    key: str
    process: subprocess.Popen[bytes]

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, principal: str, role: str = "writer", seconds: float = 3600) -> str:
        """A bearer token that the server accepts."""
        expires = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        return jwt.encode({"sub": principal, "role": role, "exp": expires}, self.key)

    def requests(self) -> list[tuple[str, str, str, int]]:
        """Principal, method, path and status of each request so far."""
        lines = (self.folder / "requests.log").read_text().splitlines()
        return [(p, m, path, int(s)) for p, m, path, s in (line.split(" ") for line in lines)]


@contextlib.contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """Run a server whose data lie in the folder; built with Maven on first use."""
    built = _built()
    folder.mkdir(parents=True, exist_ok=True)
    key, port = secrets.token_hex(32), free_port()
    with open(folder / "server.log", "w") as log:
        process = subprocess.Popen(
            ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp"]
            + [f"{built / 'classes'}:{built / 'lib'}/*", "CatalogServer"]
            + [str(port), str(folder), key, str(folder / "requests.log")],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, process, folder / "server.log")
        yield RestCatalog(port, folder, key, process)
    finally:
        process.kill()
        process.wait()


def _built() -> Path:
    sources = [SOURCES / "pom.xml", *sorted((SOURCES / "src").glob("*.java"))]
    digest = hashlib.sha256(b"".join(s.read_bytes() for s in sources)).hexdigest()[:16]
    target = Path(platformdirs.user_cache_dir("dbt-iceberg-stream")) / "tests" / f"rest-{digest}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            if shutil.which("mvn") is None:
                pytest.skip("Building the REST catalog needs Maven and a JDK: apt install maven")
            scratch = target.with_suffix(".new")
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(SOURCES, scratch, ignore=shutil.ignore_patterns("__pycache__"))
            subprocess.run(["mvn", "-q", "-B", "package"], cwd=scratch, check=True)
            (scratch / "target").rename(target)
            shutil.rmtree(scratch)
    return target
