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


@dataclass
class RestCatalog:
    """A catalog server, which may be killed and started again."""

    port: int
    folder: Path
    key: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, with what an earlier one has left in the folder."""
        built = _built()
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "server.log"
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp"]
                + [f"{built / 'classes'}:{built / 'lib'}/*", "CatalogServer"]
                + [str(self.port), str(self.folder), self.key, str(self.folder / "requests.log")],
                stdout=file,
                stderr=file,
            )
        wait_for(self.port, self.process, log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

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
    server = RestCatalog(free_port(), folder, secrets.token_hex(32))
    try:
        server.start()
        yield server
    finally:
        server.kill()


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
