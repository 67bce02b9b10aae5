"""Writers that are processes of their own, some of which die."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.identity.identity import Identity
from dbt.adapters.iceberg_stream.catalog.identity.sources import LiteralToken
from dbt.adapters.iceberg_stream.catalog.remote import RemoteBackend
from dbt.adapters.iceberg_stream.catalog.settings import CatalogSettings
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.tables.commit.producer import SnapshotProducer
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from tests.integration.processes import forkserver


def open_catalog(place: dict[str, str]) -> IcebergCatalog:
    """A catalog by the folder of a SQLite one, or by uri and token."""
    if "folder" in place:
        return IcebergCatalog("lake", SqliteBackend("lake", Path(place["folder"])))
    settings = CatalogSettings("lake", {"type": "rest", "uri": place["uri"]})
    return IcebergCatalog("lake", RemoteBackend(settings, Identity(LiteralToken(place["token"]))))


def die_at(stage: str) -> None:
    """Have this process killed at a stage of its first commit."""

    def dies_before(method: Any) -> Any:
        def dead(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        return dead

    def dies_after(method: Any) -> Any:
        def dead(*arguments: Any, **named: Any) -> None:
            method(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        return dead

    owner, name, death = {
        "before files": (DataFileWriter, "write", dies_before),
        "after files": (DataFileWriter, "close", dies_after),
        "before swap": (SnapshotProducer, "build", dies_after),
        "after swap": (IcebergCatalog, "commit", dies_after),
    }[stage]
    setattr(owner, name, death(getattr(owner, name)))


def merge(lake: IcebergCatalog, name: Name, rows: pa.Table) -> None:
    """Update `n` by `writer`, and insert the writers that are not there."""
    plan = MergePlan(("writer",), ("n",), True)
    base = lake.load(name)
    assert base is not None
    source = Source(rows, plan.keys)
    RewriteMerge(lake, name, source, plan, lambda _: None, uuid.uuid4().hex, {}).run(base)


def start(place: Mapping[str, str], **order: Any) -> BaseProcess:
    """Start a writer."""
    order = {"place": place, "mode": "append", "times": 1, "writer": 0, "die": None, **order}
    process = forkserver().Process(target=write, args=(order,))
    process.start()
    return process


def write(order: Mapping[str, Any]) -> None:
    """Write to a table, as often as ordered."""
    if order["die"]:
        die_at(order["die"])
    lake, name = open_catalog(order["place"]), ("s", order["table"])
    for number in range(order["times"]):
        if order["mode"] == "merge":
            merge(lake, name, pa.table({"writer": [-1, order["writer"]], "n": [7, 7]}))
        else:
            data = pa.table({"writer": [order["writer"]], "n": [number]})
            ingest(lake, name, data.to_reader(), Mode(order["mode"]))
    lake.close()
