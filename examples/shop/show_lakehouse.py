"""Show the result of `dbt build`: some rows, snapshots and files. Needs no Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from numbers import Number
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

HERE = Path(__file__).resolve().parent
SAMPLES = [
    ("customers", "spent", ("customer_id", "name", "city", "last_order", "orders", "spent")),
    ("orders", "updated_at", ("order_id", "order_date", "status", "coupon", "amount")),
]
SAMPLE_ROWS = 5
LATEST_SNAPSHOTS = 4
KINDS = ("added", "deleted", "total")


def print_grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of text; numbers are aligned to the right."""
    body = [list(row) for row in rows]
    texts = [["" if cell is None else str(cell) for cell in row] for row in body]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    right = [any(isinstance(row[i], Number) for row in body) for i in range(len(header))]
    for line in [list(header), ["─" * width for width in widths], *texts]:
        cells = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(line, widths, right, strict=True)
        ]
        print("  " + "  ".join(cells).rstrip())
    print()


def summary_count(snapshot: Snapshot, name: str) -> int:
    """Return a number of the snapshot's summary, for example `added-records`; 0 if it is absent."""
    value = snapshot.summary[name] if snapshot.summary else None
    return int(value or 0)


def local_path(location: str) -> Path:
    return Path(unquote(urlparse(location).path))


def print_rows(table: Table, newest: str, columns: tuple[str, ...]) -> None:
    rows = table.scan().to_arrow().sort_by([(newest, "descending")]).select(columns)
    print(f"{table.name()[-1]}: the top {SAMPLE_ROWS} of {rows.num_rows} rows by {newest}\n")
    print_grid(columns, (row.values() for row in rows.slice(0, SAMPLE_ROWS).to_pylist()))


def print_snapshots(tables: list[Table]) -> None:
    print(f"The latest snapshots of each table, up to {LATEST_SNAPSHOTS}\n")
    lines = []
    for table in tables:
        name = table.name()[-1]
        for snapshot in table.snapshots()[-LATEST_SNAPSHOTS:]:
            at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000)
            operation = snapshot.summary.operation.value if snapshot.summary else ""
            records = [summary_count(snapshot, f"{kind}-records") for kind in KINDS]
            lines.append((name, f"{at:%Y-%m-%d %H:%M:%S}", operation, *records))
            name = ""
    print_grid(("table", "committed at", "operation", *KINDS), lines)


def print_files(tables: list[Table]) -> None:
    print("Where the files are\n")
    lines = []
    for table in tables:
        folder = local_path(table.location())
        sizes = [task.file.file_size_in_bytes for task in table.scan().plan_files()]
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        lines.append((table.name()[-1], len(sizes), sum(sizes), str(shown)))
    print_grid(("table", "data files", "bytes", "folder"), lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lakehouse", type=Path, default=HERE / "lakehouse")
    parser.add_argument("--namespace", default="shop")
    arguments = parser.parse_args()

    lakehouse = arguments.lakehouse.resolve()
    if not (lakehouse / "catalog.db").exists():
        print(f"There is no lakehouse in {lakehouse}: run `dbt build` first.")
        return 1
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{lakehouse / 'catalog.db'}", warehouse=lakehouse.as_uri()
    )
    names = sorted(catalog.list_tables(arguments.namespace))
    tables = [catalog.load_table(name) for name in names]
    by_name = {table.name()[-1]: table for table in tables}

    print()
    for name, newest, columns in SAMPLES:
        if name in by_name:
            print_rows(by_name[name], newest, columns)
    print_snapshots(tables)
    print_files(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
