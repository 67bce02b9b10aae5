"""Streams of Kafka whose batches are computed in different ways, against what was sent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches import arrow_batches
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.sources import registry
from tests.integration.kafka_history import LABELS, History

SEEDS, SOAK_SEEDS = range(3), range(200)
PATHS = {"arrow": (BatchWriter, "_write_arrow"), "spark": (MessageRecords, "frame")}


@pytest.fixture(scope="module", autouse=True)
def labels(spark: Session) -> None:
    """The table of the queries that join."""
    rows = ", ".join(f"('{name}', '{label}')" for name, label in LABELS.items())
    spark.run("create table s.labels (name string, label string) using iceberg")
    spark.run(f"insert into s.labels values {rows}")


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many batches took each path to the end."""
    taken = Counter[str]()

    def counted(path: str, method: Any) -> Any:
        def count(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            taken[path] += result is not None
            return result

        return count

    for path, (owner, name) in PATHS.items():
        monkeypatch.setattr(owner, name, counted(path, getattr(owner, name)))
    return taken


def play(
    seed: int,
    bootstrap: str,
    lake: IcebergCatalog,
    spark: Session,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def use_registry(fake: Any) -> None:
        monkeypatch.setattr(registry, "SchemaRegistry", lambda options: fake)

    # Spark gives batches back to PyArrow soon.
    monkeypatch.setattr(arrow_batches, "BATCHES_OF_SPARK", 2)
    history = History(seed, bootstrap, lake, spark, folder, use_registry)
    try:
        for _ in range(history.chance.randrange(2, 5)):
            for _ in range(history.chance.randrange(1, 4)):
                history.send()
            history.run(crashes=history.chance.random() < 0.3)
            if history.chance.random() < 0.4:
                history.change_columns()
        history.run(crashes=False)
        history.check()
    except Exception as error:
        error.add_note(
            f"seed {seed}: {history.format_name}, {history.query_name}, keyed "
            f"{history.truth.keyed}, {history.delete_encoding}, version {history.version}, "
            f"crashes {history.crashes}"
        )
        raise


@pytest.mark.slow
def test_paths_alternate(
    bootstrap: str,
    lake: IcebergCatalog,
    spark: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    paths: Counter[str],
) -> None:
    for seed in SEEDS:
        play(seed, bootstrap, lake, spark, tmp_path, monkeypatch)
    assert min(paths[path] for path in PATHS) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_many_histories(
    bootstrap: str,
    lake: IcebergCatalog,
    spark: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    play(seed, bootstrap, lake, spark, tmp_path, monkeypatch)
