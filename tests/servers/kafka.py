"""Kafka as a process of its own: one node, which is its own controller (KRaft)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import platformdirs
import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from filelock import FileLock
from jwt.algorithms import RSAAlgorithm

from tests.servers.certificates import Authority
from tests.servers.ports import free_port, wait_for

# kafka-tools-api is not on Maven Central. Without slf4j-simple the server keeps silent.
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dbt.icebergstream</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>4.4.0</version>
      <exclusions><exclusion>
        <groupId>org.apache.kafka</groupId><artifactId>kafka-tools-api</artifactId>
      </exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
CLUSTER = "dbticebergstream-test0"  # 22 characters, as Kafka's base64 of a UUID has
# Nothing on disk for transactions and groups but one copy; nobody waits for other members.
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""
# Listeners behind passwords (PLAIN), behind passwords (SCRAM) in TLS, behind certificates, and
# behind tokens of an authorization server.
SECURED = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},\\
  SASL_PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{scram},SSL://127.0.0.1:{certificate},\\
  TOKENS://127.0.0.1:{tokens}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\\
  SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,TOKENS:SASL_PLAINTEXT
listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\\
  org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.ssl.ssl.client.auth=required
listener.name.tokens.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.tokens.oauthbearer.sasl.jaas.config=\\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.tokens.oauthbearer.sasl.server.callback.handler.class=\\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.tokens.sasl.oauthbearer.jwks.endpoint.url=file://{folder}/jwks.json
listener.name.tokens.sasl.oauthbearer.expected.audience=kafka
listener.name.tokens.sasl.oauthbearer.expected.issuer=tests
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.store
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
"""
# The pipe ends with the process that holds it, however that ends, and the server with the pipe.
LEASH = 'exec 3<&0; { cat <&3; kill -9 0; } & exec "$@"'


@dataclass(frozen=True)
class SecuredKafka:
    """Addresses of one server, for `bootstrap.servers`: without any security, and by security.

    Attributes:
        password: of `alice`.
        issue_token: returns a token of a user, which the server accepts.
        authority: who has signed the server's certificate, and clients' are signed by.
    """

    open: str
    plain: str
    scram: str
    certificate: str
    tokens: str
    password: str
    authority: Authority
    issue_token: Callable[[str], str]


@contextlib.contextmanager
def kafka_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """Run a server whose data lie in the folder; yields its address, for `bootstrap.servers`."""
    port = port or free_port()
    settings = SETTINGS.format(port=port, controller=free_port(), folder=folder)
    with _running(folder, port, settings):
        yield f"127.0.0.1:{port}"


def delete_topics(bootstrap: str) -> None:
    """Delete all topics but Kafka's own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]
    if topics:
        for deleted in admin.delete_topics(topics).values():
            deleted.result()


@contextlib.contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """Run a server with listeners of each kind of security."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, password = Authority(folder), f"it's{uuid.uuid4().hex}"
    certificate, key = authority.issue("broker")
    (folder / "broker.store").write_bytes(key.read_bytes() + certificate.read_bytes())
    issue_token = _token_issuer(folder)
    names = "port", "controller", "plain", "scram", "certificate", "tokens"
    ports = {name: free_port() for name in names}
    settings = SETTINGS.format(**ports, folder=folder)
    settings += SECURED.format(**ports, folder=folder, user="alice", password=password)
    scram = f"SCRAM-SHA-512=[name=alice,password={password}]"
    with _running(folder, ports["port"], settings, "--add-scram", scram):
        at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        listeners = at["port"], at["plain"], at["scram"], at["certificate"], at["tokens"]
        yield SecuredKafka(*listeners, password, authority, issue_token)


def _token_issuer(folder: Path) -> Callable[[str], str]:
    """Return what signs tokens, and write its public key to `jwks.json` of the folder."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1", "alg": "RS256"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))

    def issue(user: str) -> str:
        now = int(time.time())
        claims = {"iss": "tests", "sub": user, "aud": "kafka", "iat": now, "exp": now + 3600}
        return jwt.encode(claims, key, "RS256", {"kid": "1"})

    return issue


@contextlib.contextmanager
def _running(folder: Path, port: int, properties: str, *formatting: str) -> Iterator[None]:
    jars = _jars()
    folder.mkdir(parents=True, exist_ok=True)
    log, settings = folder / "kafka.log", folder / "server.properties"
    settings.write_text(properties)
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
    keys = f"file://{folder}/jwks.json"
    java += [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"]
    java += [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={folder}/jwks.json"]
    format_storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
    with open(log, "w") as file:
        subprocess.run(
            [*java, *format_storage, "-t", CLUSTER, "-c", str(settings), *formatting],
            stdout=file,
            stderr=file,
            check=True,
        )
        process = subprocess.Popen(
            ["sh", "-c", LEASH, "sh", *java, "kafka.Kafka", str(settings)],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    with process:
        try:
            wait_for(port, process, log)
            yield
        finally:
            process.kill()


def _jars() -> Path:
    digest = hashlib.sha256(POM.encode()).hexdigest()[:16]
    target = Path(platformdirs.user_cache_dir("dbt-iceberg-stream")) / "tests" / f"kafka-{digest}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.is_dir():
            if shutil.which("mvn") is None:
                pytest.skip("Fetching Kafka needs Maven and a JDK: apt install maven")
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                (Path(scratch) / "pom.xml").write_text(POM)
                subprocess.run(
                    ["mvn", "-q", "-B", COPY, "-DincludeScope=runtime", "-DoutputDirectory=jars"],
                    cwd=scratch,
                    check=True,
                )
                (Path(scratch) / "jars").rename(target)
    return target
