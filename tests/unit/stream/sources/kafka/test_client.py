"""Errors of connections to Kafka."""

from __future__ import annotations

import time

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka import client
from dbt.adapters.iceberg_stream.stream.sources.kafka.client import KafkaClient
from tests.servers.ports import free_port
from tests.servers.token_endpoint import token_endpoint


def test_a_refusal_before_the_first_request_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ERROR_POLL_SECONDS", 0.5)
    with token_endpoint("right", lambda name: name) as endpoint:
        refused = KafkaClient(
            {
                "bootstrap.servers": f"127.0.0.1:{free_port()}",
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "mina",
                "sasl.oauthbearer.client.secret": "mistyped",
                "sasl.oauthbearer.token.endpoint.url": endpoint.uri,
            }
        )
        refused._consumer  # noqa: B018 - it asks for a token as soon as it is there
        time.sleep(2)
        for _ in range(2):
            with pytest.raises(StreamError, match="invalid_client"):
                refused.bounds("orders")
