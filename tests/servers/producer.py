"""A producer of Kafka messages for tests, which does not lose a message silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

TIMEOUT_SECONDS = 30


class CheckedProducer(Producer):
    """Keeps the order of messages, and reports those that no broker has taken."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        # A message that is sent again would otherwise come after later ones of its partition.
        super().__init__({"enable.idempotence": True, **options})
        self._errors: list[KafkaError] = []

    def produce(self, *args: Any, **options: Any) -> None:
        """Send a message, with the arguments of `Producer.produce`."""
        super().produce(*args, **{"on_delivery": self._delivered, **options})

    def deliver(self) -> None:
        """Wait until the brokers have every message; fail if one of them was refused."""
        assert self.flush(TIMEOUT_SECONDS) == 0
        errors, self._errors = self._errors, []
        assert errors == []

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)
