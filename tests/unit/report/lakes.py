"""A project with tables, snapshots and texts of all kinds, for reports, without Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation

from dbt.adapters.iceberg_stream.builds.build import store_record
from dbt.adapters.iceberg_stream.builds.commands import CommandRecord
from dbt.adapters.iceberg_stream.builds.names import staged_name
from dbt.adapters.iceberg_stream.builds.publish import publish
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import catalog_file
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX
from tests.unit.local_tables import commit, data_file, make_table

HOSTILE = "<script>alert(1)<\"'><img src=x onerror=alert(2)>{{ 'x' * 7 }}"
SECRET = "hunter2secret"
RUN = "11111111-0000-0000-0000-000000000001"
LATER_RUN = "22222222-0000-0000-0000-000000000002"


def properties(model: str, run: str = RUN, principal: str = "ada") -> dict[str, str]:
    """Snapshot properties as a model's run leaves them."""
    return {
        f"{PREFIX}write-id": f"{model}{run}",
        f"{PREFIX}invocation-id": run,
        f"{PREFIX}node-id": f"model.shop.{model}",
        f"{PREFIX}model": model,
        f"{PREFIX}principal": principal,
    }


def append(
    lake: IcebergCatalog, name: tuple[str, str], rows: int = 1, files: int = 1, **summary: str
) -> None:
    """Commit data files that are not there, with properties in the summary."""
    paths = tuple(data_file(f"{name}-{summary}-{n}", rows) for n in range(files))
    commit(lake, Change(Operation.APPEND, (AddedFiles(paths),), properties=summary), name=name)


def replace_all(lake: IcebergCatalog, name: tuple[str, str], rows: int, **summary: str) -> None:
    """Replace all rows, as the model of a table does it."""
    added = (AddedFiles((data_file(f"{name}-new", rows),)),)
    change = Change(Operation.OVERWRITE, added, removes_all=True, properties=summary)
    commit(lake, change, name=name)


def delete(lake: IcebergCatalog, name: tuple[str, str], keys: int, files: int = 1) -> None:
    """Commit equality delete files."""
    equality = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    deletes = tuple(data_file(f"{name}-e{n}", keys, **equality) for n in range(files))
    commit(lake, Change(Operation.DELETE, (AddedFiles((), deletes),)), name=name)


def stream_commits(lake: IcebergCatalog, name: tuple[str, str], *rows: int) -> None:
    """Commit as a stream does, with its progress in the table's property, too."""
    for number, count in enumerate(rows):
        progress = Progress("model.shop.events", 1, "r", {"0": number}, f"w{number}")
        added = (AddedFiles((data_file(f"{name}{number}", count),)),)
        change = Change(Operation.APPEND, added, properties=progress.summary(progress.frontier))
        commit(lake, change, progress.as_property(), name=name)


def add_relation(folder: Path, name: str, kind: str = "TABLE") -> None:
    """Enter a table or view into the catalog whose metadata are not there."""
    with closing(sqlite3.connect(catalog_file(folder / "warehouse"))) as database, database:
        columns = ("lake", "s", name, "file:///gone/v.metadata.json", None, kind)
        database.execute("insert into iceberg_tables values (?, ?, ?, ?, ?, ?)", columns)


def fill(lake: IcebergCatalog, folder: Path) -> None:
    """Fill the namespace `s`, and write the artifacts of a project over it."""
    make_table(lake, name=("s", "orders"), properties={"comment": f"{HOSTILE} &amp;"})
    append(lake, ("s", "orders"), 44, **properties("orders"))
    append(lake, ("s", "orders"), 16, **properties("orders", LATER_RUN, HOSTILE))
    make_table(lake, name=("s", "events"))
    stream_commits(lake, ("s", "events"), 10, 20, 30)
    make_table(lake, name=("s", "events__eu"))
    make_table(lake, name=("s", "deleted"))
    append(lake, ("s", "deleted"), 1, 100)
    delete(lake, ("s", "deleted"), 10_000, 100)
    make_table(lake, name=("s", "empty"))
    address = f"s3://bucket/t?secret_access_key={SECRET}&x=1"
    make_table(lake, name=("s", HOSTILE), properties={"comment": address, "s3.token": SECRET})
    append(lake, ("s", HOSTILE), 1, **{f"{PREFIX}model": HOSTILE, "engine-name": HOSTILE})
    fill_builds(lake)
    add_relation(folder, "a_view", "VIEW")
    add_relation(folder, "gone")
    write_artifacts(folder)


def fill_builds(lake: IcebergCatalog) -> None:
    """Stage two builds of `orders`, and publish the first."""
    orders = "s", "orders"
    stage_table(lake, orders, "20261123-ae3c0bcb", {})
    append(lake, staged_name(orders, "20261123-ae3c0bcb"), 4, **{f"{PREFIX}principal": "ada"})
    publish(lake, "20261123-ae3c0bcb", [(orders, "table")])
    stage_table(lake, orders, "pr-42", {})
    append(lake, staged_name(orders, "pr-42"), 7)
    stage_table(lake, ("s", "failed"), "pr-42", {})
    record = CommandRecord("c", "2026-11-23", True, failed=("model.shop.failed", HOSTILE))
    store_record(lake, "pr-42", orders, "table", record)


def model(name: str, *parents: str, **fields: Any) -> dict[str, Any]:
    """A model of a manifest."""
    materialized = fields.pop("materialized", "table")
    return {
        "resource_type": "model",
        "name": name,
        "alias": name,
        "schema": "s",
        "description": "",
        "config": {"materialized": materialized},
        "depends_on": {"nodes": list(parents)},
        **fields,
    }


def write_artifacts(folder: Path, nodes: Mapping[str, Any] | None = None) -> None:
    """Write `target/manifest.json` and `target/run_results.json`."""
    source = {"source_name": "kafka", "name": "events", "schema": "s", "identifier": "events"}
    default = {
        "model.shop.orders": model("orders", "seed.shop.raw", materialized="incremental"),
        "model.shop.events": model("events", "source.shop.kafka.events", materialized="stream"),
        "model.shop.report": model("report", "model.shop.orders", "model.shop.events"),
        "seed.shop.raw": model("raw", resource_type="seed", description=HOSTILE),
        "test.shop.unique": model("unique", "model.shop.orders", resource_type="test"),
    }
    manifest = {
        "metadata": {"project_name": "shop", "generated_at": "2026-11-23T00:00:00Z"},
        "nodes": default if nodes is None else nodes,
        "sources": {
            "source.shop.kafka.events": source,
            "source.shop.kafka.unread": {**source, "name": "unread"},
        },
    }
    results = {
        "metadata": {"invocation_id": LATER_RUN},
        "results": [{"unique_id": "model.shop.orders", "execution_time": 12.34}],
    }
    (folder / "target").mkdir(exist_ok=True)
    (folder / "target" / "manifest.json").write_text(json.dumps(manifest))
    (folder / "target" / "run_results.json").write_text(json.dumps(results))
