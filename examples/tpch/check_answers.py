"""Compare the Iceberg tables q01 … q22 with TPC-H's answers; needs no Spark."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

HERE = Path(__file__).resolve().parent
CENT = Decimal("0.01")
SHARE = Decimal("0.0001")

Row = dict[str, str]


def is_measure(kind: pa.DataType) -> bool:
    """Return whether a column has sums, averages or ratios, which engines round differently."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_floating(kind))


def as_text(row: dict[str, object]) -> Row:
    """Return the row as a CSV file would contain it."""
    return {name: "" if value is None else str(value) for name, value in row.items()}


def same_measure(got: str, want: str) -> bool:
    """Return whether two numbers are equal to the cent and to 0.01 %.

    The specification (2.1.3.5) allows more: $100 for sums, 1 % for averages and ratios.
    """
    if not got or not want:
        return got == want
    difference = abs(Decimal(got) - Decimal(want))
    return difference <= min(CENT, SHARE * abs(Decimal(want)))


def by_key(rows: Iterable[Row], keys: list[str]) -> dict[tuple[str, ...], Row]:
    """Return rows by their exact columns, because a table has no order to pair them by."""
    answers: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        if key in answers:
            raise ValueError(f"two rows have the key {key}")
        answers[key] = row
    return answers


def differences(got: pa.Table, want: list[Row]) -> list[str]:
    """Return the differences of one query's table, a line for each."""
    columns = list(want[0]) if want else got.column_names
    if got.column_names != columns:
        return [f"columns are {got.column_names}, not {columns}"]
    measures = [field.name for field in got.schema if is_measure(field.type)]
    keys = [name for name in columns if name not in measures]
    try:
        ours = by_key(map(as_text, got.to_pylist()), keys)
        theirs = by_key(want, keys)
    except ValueError as error:
        return [str(error)]
    faults = [f"missing row {key}" for key in theirs.keys() - ours.keys()]
    faults += [f"unexpected row {key}" for key in ours.keys() - theirs.keys()]
    for key in theirs.keys() & ours.keys():
        for name in measures:
            if not same_measure(ours[key][name], theirs[key][name]):
                faults.append(f"{key}: {name} is {ours[key][name]}, not {theirs[key][name]}")
    return sorted(faults)


def read_answer(path: Path) -> list[Row]:
    """Return the rows of one answer file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sf", default="1", help="scale factor of the data (1 or 0.01)")
    parser.add_argument("--lakehouse", type=Path, default=HERE / "lakehouse")
    parser.add_argument("--namespace", default="tpch")
    arguments = parser.parse_args()

    answers = sorted((HERE / "answers" / f"sf{arguments.sf}").glob("q*.csv"))
    if not answers:
        print(f"There are no answers for scale factor {arguments.sf}: nothing is checked.")
        return 0
    lakehouse = arguments.lakehouse.resolve()
    if not (lakehouse / "catalog.db").exists():
        print(f"There is no lakehouse in {lakehouse}: run `make demo-tpch` first.")
        return 1
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{lakehouse / 'catalog.db'}", warehouse=lakehouse.as_uri()
    )

    right = 0
    for path in answers:
        table = catalog.load_table((arguments.namespace, path.stem)).scan().to_arrow()
        faults = differences(table, read_answer(path))
        right += not faults
        print(f"{path.stem}  {table.num_rows:>6,} rows  {'wrong' if faults else 'ok'}")
        for fault in faults[:5]:
            print(f"     {fault}")
        if len(faults) > 5:
            print(f"     … and {len(faults) - 5} more")
    print(f"{right} of {len(answers)} answers are right.")
    return 0 if right == len(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
