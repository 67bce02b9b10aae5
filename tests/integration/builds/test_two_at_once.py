"""Two processes that publish or discard one build at the same time."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.builds.build import discard, get_build, list_builds
from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.views import view_query
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from tests.integration.builds.staged_builds import (
    BUILD,
    NEW,
    OLD,
    VIEW,
    stage_view,
    staged,
    staged_build,
    state,
    write,
)
from tests.lost_files import assert_nothing_lost

OTHER_VIEW = {
    **VIEW,
    "versions": [
        {
            **VIEW["versions"][0],  # type: ignore[index]
            "representations": [{"type": "sql", "sql": "select 2 as id", "dialect": "spark"}],
        }
    ],
}
OLD_KINDS = {"table": "table", "view": "select 1 as id", "changed": "select 1 as id", "new": None}
NEW_KINDS = {"table": "select 1 as id", "view": "table", "changed": "select 2 as id"} | {
    "new": "select 1 as id"
}

BOTH = [(NEW, NEW_KINDS), (OLD, OLD_KINDS)]


def opened(folder: Path) -> IcebergCatalog:
    return IcebergCatalog("lake", SqliteBackend("lake", folder))


def prepare(folder: Path) -> IcebergCatalog:
    """Stage tables, views, a view for a table and a table for a view."""
    lake = opened(folder)
    lake._backend.create_namespace("s")
    write(lake, "table", [1], Mode.REPLACE)
    for name in ("view", "changed"):
        lake.put_view(("s", name), VIEW)
    staged_build(lake)
    for name in ("table", "new"):
        stage_view(lake, name)
    stage_view(lake, "changed", OTHER_VIEW)
    stage_table(lake, ("s", "view"), BUILD, {})
    write(lake, staged("view"), [5], Mode.REPLACE)
    return lake


def kinds(lake: IcebergCatalog) -> dict[str, str | None]:
    found = {name: lake.metadata(("s", name)) for name in OLD_KINDS}
    return {
        name: metadata and (view_query(metadata) if "versions" in metadata else "table")
        for name, metadata in found.items()
    }


def end_build(folder: Path, action: str, delay: float, start: Barrier, results: Queue[str]) -> None:
    try:
        lake = opened(folder)
        build = get_build(lake, BUILD)
        start.wait(30)
        time.sleep(delay)
        if action == "publish":
            publish(lake, BUILD, build.relations.items())
        else:
            discard(lake, build)
        results.put("done")
    except BuildError as error:
        results.put(str(error))
    except BaseException as error:
        results.put(repr(error))
        raise


def two_at_once(folder: Path, other: str, seed: int) -> None:
    lake = prepare(folder)
    context, chance = multiprocessing.get_context("fork"), random.Random(seed)
    start, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(
            target=end_build, args=(folder, action, chance.random() * spread, start, results)
        )
        for action, spread in (("publish", 0.15), (other, 0.4 if other == "discard" else 0.15))
    ]
    for process in processes:
        process.start()
    said = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    refused = [text for text in said if text != "done"]
    assert len(refused) < 2
    assert all("published or discarded by another process" in text for text in refused), refused
    assert list_builds(lake) == []
    assert (state(lake), kinds(lake)) in ([(NEW, NEW_KINDS)] if other == "publish" else BOTH)
    assert_nothing_lost(lake, ["s"])
    assert not list((folder / "s").glob("v*__dbt_build_*"))
    lake.close()


@pytest.mark.parametrize("other", ["publish", "discard"])
def test_one_is_as_if_before_the_other(tmp_path: Path, other: str) -> None:
    for seed in range(8):
        two_at_once(tmp_path / str(seed), other, seed)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["publish", "discard"])
def test_minutes(tmp_path: Path, other: str) -> None:
    for seed in range(400):
        two_at_once(tmp_path / str(seed), other, seed)
