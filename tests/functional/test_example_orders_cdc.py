"""The example's models against the shop that its changes are of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.tests.util import run_dbt

from examples.orders_cdc.encodings import Avro, Json
from examples.orders_cdc.reader import COLUMNS
from examples.orders_cdc.shop_changes import Shop, create_topics, feed
from tests.functional.lake import rows
from tests.servers.kafka import delete_topics
from tests.servers.schema_registry import schema_registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders_cdc"


class Example:
    """The example's models, and Kafka with its topics."""

    @pytest.fixture(scope="class")
    def registry(self) -> str:
        return ""

    @pytest.fixture(scope="class")
    def kafka(self, registry: str, kafka_address: str) -> Iterator[str]:
        with pytest.MonkeyPatch.context() as m:
            m.setenv("KAFKA", kafka_address)
            m.setenv("SCHEMA_REGISTRY", registry)
            m.setenv("ENCODING", "avro" if registry else "json")
            create_topics(kafka_address)
            yield kafka_address
        delete_topics(kafka_address)

    @pytest.fixture(scope="class")
    def models(self, kafka: str) -> dict[str, dict[str, str]]:
        folders = (EXAMPLE / "models").iterdir()
        return {f.name: {p.name: p.read_text() for p in f.iterdir()} for f in folders}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        config = yaml.safe_load((EXAMPLE / "dbt_project.yml").read_text())
        return {"models": {"test": config["models"]["orders_cdc"]}}

    def compare(self, project: Any, shop: Shop) -> None:
        for table, expected in shop.rows().items():
            columns = COLUMNS[table].replace("epoch_ms", "unix_millis")
            actual = rows(project, f"select {columns} from {{schema}}.{table}")
            assert sorted(actual, key=repr) == expected, table


@pytest.mark.slow
class TestAvro(Example):
    @pytest.fixture(scope="class")
    def registry(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        with schema_registry(tmp_path_factory.mktemp("registry")) as registry:
            yield registry.url

    def test_tables_are_as_the_shop(self, project: Any, kafka: str, registry: str) -> None:
        shop, encoding = Shop(), Avro(registry)
        feed(shop, kafka, encoding, float("inf"), threading.Event(), most=300)
        run_dbt(["run", "-s", "streams"])
        feed(shop, kafka, encoding, float("inf"), threading.Event(), most=300)
        run_dbt(["run"])
        self.compare(project, shop)


class TestJson(Example):
    def test_tables_are_as_the_shop(self, project: Any, kafka: str) -> None:
        shop = Shop()
        feed(shop, kafka, Json(), float("inf"), threading.Event(), most=300)
        run_dbt(["run"])
        self.compare(project, shop)
