"""Sources of several topics: what they may say, and which of them are one source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source

SHOP: dict[str, Any] = {
    "type": "kafka",
    "bootstrap_servers": "broker:9092",
    "format": "debezium",
    "columns": "id bigint",
    "topics": ["shop.orders", "shop.items"],
}
TRANSACTION_TOPIC = {"transaction_topic": "shop.transaction"}
REGISTRY = {"schema_registry": "http://registry:8081"}


def definition(**spec: Any) -> SourceDefinition:
    return SourceDefinition(("landing", "orders"), "landing.orders", {**SHOP, **spec})


def test_models_of_other_topics_read_one_source() -> None:
    orders, items = definition(topic="shop.orders"), definition(topic="shop.items")
    assert orders.identity == items.identity == definition(format="raw").identity
    assert orders.identity == definition(topics=("shop.items", "shop.orders")).identity
    assert orders.identity != definition(topics=["shop.orders"]).identity
    assert orders.identity != definition(**TRANSACTION_TOPIC).identity
    alone, other = definition(topics=None, topic="a"), definition(topics=None, topic="b")
    assert alone.identity != other.identity


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"topics": []}, "needs `bootstrap_servers`, and `topic` or `topics`"),
        ({"topics": "shop.orders"}, "a list of topics"),
        ({"topic": "shop.people"}, "`topic` must be one of"),
        ({"transactions": True}, "Set `transaction_topic` to the topic to which Debezium"),
        ({**TRANSACTION_TOPIC, "format": "maxwell"}, "needs `format: debezium`"),
        ({"transaction_topic": "shop.items"}, "is one of the topics whose changes are read"),
    ],
)
def test_what_is_refused(spec: dict[str, Any], words: str) -> None:
    nobody: Any = None
    with pytest.raises(StreamError, match=words):
        open_source(definition(**spec), nobody, Path("."), {})
    open_source(definition(**TRANSACTION_TOPIC, transactions=True), nobody, Path("."), {})
    for encoding in ("avro", "protobuf"):
        open_source(
            definition(**TRANSACTION_TOPIC, **REGISTRY, encoding=encoding), nobody, Path("."), {}
        )
