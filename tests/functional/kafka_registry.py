"""Kafka and a schema registry for streams, and the models that read them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.producer import CheckedProducer
from tests.servers.schema_registry import Registry, schema_registry, with_login
from tests.servers.tcp_proxy import TcpProxy, tcp_proxy

PASSWORD = "registry-password"
HEAD = """
sources:
  - name: kafka
    config: {meta: {stream: {type: kafka, connection: shop}}}"""


@dataclass
class Shop:
    """What sends messages: Kafka and a registry."""

    bootstrap: str
    registry: Registry
    proxy: TcpProxy

    def send_bytes(self, topic: str, *messages: bytes | None, key: bytes = b"key") -> None:
        producer = CheckedProducer({"bootstrap.servers": self.bootstrap})
        for message in messages:
            producer.produce(topic, key=key, value=message)
        producer.deliver()

    @property
    def connections(self) -> dict[str, dict[str, str]]:
        """The profile's `kafka`, with a connection whose password is wrong."""
        connection = {
            "bootstrap.servers": self.bootstrap,
            "schema.registry.url": f"http://127.0.0.1:{self.proxy.port}/apis/ccompat/v7",
            "schema.registry.basic.auth.user.info": f"alice:{PASSWORD}",
        }
        login = {"schema.registry.basic.auth.user.info": "alice:mistyped-password"}
        return {"shop": connection, "mistyped": {**connection, **login}}


@contextlib.contextmanager
def shop_servers(bootstrap: str, folder: Path, topics: Sequence[str]) -> Iterator[Shop]:
    """Create topics in Kafka, and run a registry with a login behind a proxy."""
    with (
        schema_registry(folder) as registry,
        with_login(registry, f"alice:{PASSWORD}") as port,
        tcp_proxy(port) as proxy,
    ):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            created.result()
        yield Shop(bootstrap, registry, proxy)


def header(number: int) -> bytes:
    """Return what is before a message with the id of its schema."""
    return b"\0" + number.to_bytes(4, "big")


def sources(definitions: Mapping[str, str]) -> str:
    """Return sources.yml with the keys of each source's stream."""
    tables = "".join(
        f"      - {{name: {name}, config: {{meta: {{stream: {{{keys}}}}}}}}}\n"
        for name, keys in definitions.items()
    )
    return f"{HEAD}\n    tables:\n{tables}"


def model(name: str, **config: Any) -> str:
    """Return a model that reads a source."""
    settings = {"materialized": "stream", **config}
    named = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{{{{ config({named}) }}}}\nselect * from {{{{ stream(source('kafka', '{name}')) }}}}"
