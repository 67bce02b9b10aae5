"""Kafka as a process of its own: one node, which is its own controller (KRaft)."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from filelock import FileLock

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
# The pipe ends with the process that holds it, however that ends, and the server with the pipe.
LEASH = 'exec 3<&0; { cat <&3; kill -9 0; } & exec "$@"'


@contextlib.contextmanager
def kafka_server(folder: Path) -> Iterator[str]:
    """Run a server whose data lie in the folder; yields its address, for `bootstrap.servers`."""
    jars = _jars()
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "kafka.log"
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=free_port(), folder=folder))
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
    format_storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
    with open(log, "w") as file:
        subprocess.run(
            [*java, *format_storage, "-t", CLUSTER, "-c", str(settings)],
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
            yield f"127.0.0.1:{port}"
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
