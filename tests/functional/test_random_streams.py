"""Streams of all kinds, whose batches end anywhere, against a model that knows no batches.

Each kind is a stream whose batches are small and that PyArrow computes, one that Spark computes, and
one that reads everything at once. Others write to the first two, compact and upgrade them.
`-k "107"` repeats the history of a seed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dbt.tests.util import run_dbt

from tests.functional.foreign_writer import ALL, foreign_writer
from tests.functional.lake import rows, run
from tests.functional.random_streams import KINDS, WAYS, Change, Row, Truth, changes, models
from tests.functional.test_foreign_writers import foreign_write
from tests.lost_files import assert_nothing_lost

STEPS, MANY_STEPS = 2, 12
TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("value", pa.string()),
        ("other", pa.int64()),
        ("at", pa.int64()),
        ("op", pa.string()),
    ]
)
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 106))]
COMPACT = (
    "call lake.system.rewrite_data_files(table => '{{schema}}.{name}', "
    "options => map('rewrite-all', 'true'))"
)
# Where others may not write, what they do changes no row.
UPKEEP = [
    COMPACT,
    "alter table {{schema}}.{name} set tblproperties ('format-version' = '3')",
    "alter table {{schema}}.{name} set tblproperties ('a' = 'b')",
]


def value_of(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", r"\'") + "'"
    return "null" if value is None else str(value)


class TestRandomStreams:
    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return models(list(KINDS))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_rows(self, project: Any, seed: int) -> None:
        self.project, self.rng, self.files = project, Random(seed), 0
        # The other kinds are those of the short test below.
        is_long, kinds = seed >= 100, list(KINDS)
        steps, kinds = (MANY_STEPS, kinds) if is_long else (STEPS, kinds[::2])
        truths = {(kind, way): KINDS[kind].truth() for kind in kinds for way in WAYS}
        self.begin([f"{kind}_{way}" for kind in kinds for way in WAYS])
        for step in range(steps):
            for ops in ("ud", "udt"):
                for _ in range(self.rng.randint(1, 3)):
                    self.land(ops, changes(self.rng, ops), truths)
            ways = [way for way in WAYS if way != "once" or step == steps - 1]
            run_dbt(["run", "--select", *(f"{kind}_{way}" for kind in kinds for way in ways)])
            wrong: list[Any] = []
            for kind in kinds:
                for way in ways:
                    name = f"{kind}_{way}"
                    query = f"select {KINDS[kind].columns} from {{schema}}.{name}"
                    actual, expected = Counter(rows(project, query)), truths[kind, way].contents()
                    if actual != expected:
                        wrong.append((step, name, actual - expected, expected - actual))
                    if way != "once":
                        self.write(kind, name, truths[kind, way])
            if wrong:
                pytest.fail("\n".join(map(str, (seed, *wrong))))
        assert_nothing_lost(project.adapter.catalog)

    def begin(self, names: Iterable[str]) -> None:
        """Remove the files and tables of another seed."""
        self.time = time.time() - 3000
        for file in (Path(self.project.project_root) / "landing").glob("*/*.parquet"):
            file.unlink()
        for name in names:
            run(self.project, f"drop table if exists {{schema}}.{name}")

    def land(self, ops: str, batch: list[Change], truths: dict[tuple[str, str], Any]) -> None:
        folder = Path(self.project.project_root) / "landing" / ops
        folder.mkdir(parents=True, exist_ok=True)
        self.files += 1
        self.time += 1
        path = folder / f"{self.files:04}.parquet"
        columns = [list(column) for column in zip(*batch, strict=True)]
        pq.write_table(pa.table(columns, schema=TYPES), path.with_name(f".{path.name}"))
        os.utime(path.with_name(f".{path.name}"), (self.time, self.time))
        path.with_name(f".{path.name}").rename(path)
        for (kind, _), truth in truths.items():
            if KINDS[kind].ops == ops:
                for change in batch:
                    truth.apply(change)

    def write(self, kind: str, name: str, truth: Any) -> None:
        """Another writer writes to a table, or compacts or upgrades it."""
        write = self.rng.choice(["nothing", "upkeep", "rows", "rows", "rows"])
        if write == "upkeep":
            run(self.project, self.rng.choice(UPKEEP).format(name=name))
        if write == "rows" and KINDS[kind].others_write:
            sql, change = self.other_write(name, truth)
            run(self.project, sql)
            change(truth)

    def other_write(self, name: str, truth: Truth) -> tuple[str, Callable[[Truth], None]]:
        """A write to a table in SQL, and what it does to the rows."""
        row = Row(9, "9", "other", 0, self.rng.randint(1, 30))
        new_key = tuple(getattr(row, column) for column in truth.key)
        key = self.rng.choice([*truth.rows, new_key])
        condition = " and ".join(
            f"{column} <=> {value_of(part)}" for column, part in zip(truth.key, key, strict=True)
        )
        table, write = f"{{schema}}.{name}", self.rng.choice(["delete", "update", "insert"])
        if write == "delete":
            return f"delete from {table} where {condition}", lambda t: t.rows.pop(key, None)
        if write == "insert" and new_key not in truth.rows:
            return (
                f"insert into {table} values ({', '.join(map(value_of, row))})",
                lambda t: t.rows.update({new_key: row}),
            )

        def update(truth: Truth) -> None:
            if key in truth.rows:
                truth.rows[key] = truth.rows[key]._replace(other=7)

        return f"update {table} set other = 7 where {condition}", update

    @pytest.mark.parametrize("seed", SEEDS)
    def test_writers_between(self, project: Any, seed: int) -> None:
        """Another writer commits between any two calls of a run: as between any two changes."""
        self.project, self.rng, self.files = project, Random(seed), 0
        kinds = [kind for kind in KINDS if KINDS[kind].others_write]
        kinds = kinds if seed >= 100 else kinds[1::2]
        names = {f"{kind}_{way}": kind for kind in kinds for way in ("few", "spark")}
        truths = {(kind, name): KINDS[kind].truth() for name, kind in names.items()}
        self.begin(names)
        self.land_all(truths)
        run_dbt(["run", "--select", *names])
        for _ in range(MANY_STEPS if seed >= 100 else 1):
            before, landed = deepcopy(truths), self.land_all(truths)
            for name, kind in names.items():
                sql, change = self.other_write(name, before[kind, name])
                write = foreign_write(project, sql)
                with foreign_writer(write, self.rng.randrange(20), ALL) as calls:
                    run_dbt(["run", "--select", name])
                if not calls.has_written:
                    run(project, sql)
                columns = KINDS[kind].columns
                actual = Counter(rows(project, f"select {columns} from {{schema}}.{name}"))
                possible = orders(before[kind, name], landed[KINDS[kind].ops], change)
                fitting = [truth for truth in possible if truth.contents() == actual]
                wrong = [(t.contents() - actual, actual - t.contents()) for t in possible]
                assert fitting, (seed, name, sql, landed[KINDS[kind].ops], *wrong)
                truths[kind, name] = fitting[0]

    def land_all(self, truths: dict[tuple[str, str], Any]) -> dict[str, list[Change]]:
        """Land changes of all sources, and return them."""
        landed: dict[str, list[Change]] = {"ud": [], "udt": []}
        for ops, all_changes in landed.items():
            for _ in range(self.rng.randint(1, 3)):
                all_changes += (batch := changes(self.rng, ops))
                self.land(ops, batch, truths)
        return landed


def orders(truth: Truth, batch: list[Change], write: Callable[[Truth], None]) -> list[Truth]:
    """The results of some changes and a write between any two of them."""
    results = []
    for place in range(len(batch) + 1):
        result = deepcopy(truth)
        for number, change in enumerate(batch):
            if number == place:
                write(result)
            result.apply(change)
        if place == len(batch):
            write(result)
        results.append(result)
    return results
