"""Brokers to which passwords may be sent without TLS."""

from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.kafka.plaintext import require_private_brokers


def options(brokers: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "bootstrap.servers": brokers,
    }


@pytest.mark.parametrize(
    "brokers",
    [
        "localhost", "localhost:9092", "127.0.0.1", "127.0.0.1:1,", "::1", "[::1]", "[::1]:9092",
        "SASL_PLAINTEXT://localhost:9092, 127.1.2.3",
    ],
)  # fmt: skip
def test_this_machine(brokers: str) -> None:
    require_private_brokers(options(brokers))


@pytest.mark.parametrize("brokers", ["kafka", "10.0.0.1:9092", "localhost,kafka:1", "fe80::1"])
def test_others(brokers: str) -> None:
    with pytest.raises(StreamError, match="without TLS"):
        require_private_brokers(options(brokers))
