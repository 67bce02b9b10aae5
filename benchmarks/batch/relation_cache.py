"""Filling dbt's relation cache for a namespace of 500 tables."""

from __future__ import annotations

import re
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from benchmarks import projects
from benchmarks.bench import Bench
from benchmarks.contenders import CATALOG, SCHEMA, Contender, Peer, WarmPeer
from benchmarks.harness import BenchmarkError, Result, alternate
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend

COLUMNS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "amount", DoubleType()),
    NestedField(3, "name", StringType()),
)
FOUND = re.compile(r"found (\S+) in ([\d.e-]+) s")
NOTE = (
    "The first `adapter.get_relation` of a command, which lists the whole namespace into the "
    "cache; connecting is not in the time."
)


def fill(bench: Bench) -> list[Result]:
    """All list the same tables of one catalog."""
    count = bench.size(500)
    warehouse = bench.folder / "listing" / "lakehouse"
    _make_tables(warehouse, count)
    # Parsing is not in the time that the macro takes: there is nothing to prepare.
    trio = bench.trio("listing", projects.listing(_name(0)), warehouse, prepare=())

    def listing(contender: Contender) -> float:
        output = contender.dbt("run-operation", "time_listing").output
        match = FOUND.search(output)
        if match is None or match[1] != _name(0):
            raise BenchmarkError(f"{contender.label} has not found the table:\n{output}")
        return float(match[2])

    seconds = alternate(
        {
            "ours": lambda: listing(trio.ours),
            "peer": lambda: listing(trio.peer),
            "warm peer": lambda: listing(trio.warm_peer),
        },
        bench.runs(),
    )
    name, ours = "relation_cache_500", seconds["ours"]
    return [
        Result.of(name, Peer.label, ours, seconds["peer"], 10, NOTE),
        Result.of(f"{name}_connect_peer", WarmPeer.label, ours, seconds["warm peer"], None, NOTE),
    ]


def _make_tables(warehouse: Path, count: int) -> None:
    """Through PyIceberg, which needs milliseconds a table."""
    lake = IcebergCatalog(CATALOG, SqliteBackend(CATALOG, warehouse))
    try:
        lake.create_namespace(SCHEMA)
        for number in range(count):
            lake.pyiceberg.create_table((SCHEMA, _name(number)), COLUMNS)
    finally:
        lake.close()


def _name(number: int) -> str:
    return f"listed_{number:03}"
