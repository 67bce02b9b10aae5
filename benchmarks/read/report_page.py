"""Time `iceberg-stream report` for a namespace of many tables, without Spark.

Usage: python -m benchmarks.read.report_page --tables 500 --commits 20
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.render import render
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "x", StringType(), required=False),
)
_numbers = itertools.count()


def main() -> None:
    """Make the tables, report them several times, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--commits", type=int, default=1, help="snapshots of each table")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = IcebergCatalog("lake", SqliteBackend("lake", Path(folder)))
        lake.create_namespace("s")
        for number in range(options.tables):
            make_table(lake, ("s", f"table_{number:04}"), options.commits)
        gathered, rendered, page = [], [], ""
        for _ in range(options.runs):
            begin = time.monotonic()
            contents = gather(lake, ["s"])
            gathered.append(time.monotonic() - begin)
            page = render(contents)
            rendered.append(time.monotonic() - begin - gathered[-1])
        lake.close()
    print(
        f"{options.tables:,} tables with {options.commits:,} snapshots each, load "
        f"{os.getloadavg()[0]:.1f}: {statistics.median(gathered):.2f} s to gather, "
        f"{statistics.median(rendered):.2f} s to render, {len(page.encode()):,} bytes"
    )


def make_table(lake: IcebergCatalog, name: tuple[str, str], commits: int) -> None:
    """Make a table whose data files are not there: the report does not read them."""
    lake.commit(lake.stage(name, SCHEMA, UNPARTITIONED_PARTITION_SPEC, {}), (), ())
    for number in range(commits):
        base = lake.load(name)
        assert base is not None
        change = Change(
            Operation.APPEND,
            (AddedFiles((data_file(),)),),
            properties={
                f"{PREFIX}model": name[1],
                f"{PREFIX}node-id": f"model.shop.{name[1]}",
                f"{PREFIX}invocation-id": f"00000000-0000-0000-0000-{number:012}",
                f"{PREFIX}principal": "ada",
            },
        )
        Committer(lake, name, change, base, ()).commit()


def data_file() -> DataFile:
    """Describe a data file."""
    file = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.DATA,
        file_path=f"file:///data/{next(_numbers)}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1_000,
        file_size_in_bytes=100_000,
    )
    file.spec_id = 0
    return file


if __name__ == "__main__":
    main()
