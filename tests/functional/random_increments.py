"""Random histories of incremental models, with a foreign writer, against a model in Python.

A row is a key of two columns, of which each may be null, and a number. Each step builds one model,
with columns in another letter case and order and maybe another layout than before. Another writer
may commit at any time meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from tests.functional.random_projects import model

Row = tuple[int | None, str | None, int]
Rows = list[Row]
Change = Callable[[Rows], Rows]

TEXTS = [None, "", "a", "A", "it's", "x\\y", "Ä", "a\u0308", "%_", "`", "\u00a0"]
BUCKET = BucketTransform(3).transform(LongType())
# The partition of a row by each layout.
LAYOUTS: dict[tuple[str, ...], Callable[[Row], Any]] = {
    (): lambda row: None,
    ("ID",): lambda row: row[0],
    ("k",): lambda row: row[1],
    ("bucket(3, Id)",): lambda row: BUCKET(row[0]),
    ("truncate(10, id)", "truncate(1, K)"): lambda row: (
        row[0] and row[0] // 10,
        row[1] and row[1][:1],
    ),
}
CHANGES = ["ignore", "fail", "append_new_columns", "sync_all_columns"]
STRATEGIES = ["merge", "delete+insert", "insert_overwrite", "append"]
KEYED = ("merge", "delete+insert")
# Without brackets, it is another condition after an `and`.
ALWAYS = "1 = 0 or 1 = 1"
CALLS = 16
SOURCE_KEYS = [(50, "a"), (51, "a"), (51, "A"), (None, "a"), (50, None), (None, None)]
SOURCE = "{{ this.schema }}.{{ this.identifier }}_source"
COLUMNS = {"id": "bigint", "k": "string", "n": "bigint"}

QUERIED = """
{% if execute %}{% set q = run_query(QUERY).rows[0] %}{% endif %}
select {{ q[0] if q }} as id, 'next' as k, {{ q[1] if q }} as n"""
NEXT = "'select max(id) + 1, count(*) from "
OWN_QUERIES = [
    f"{NEXT}' ~ this",
    f"({NEXT}' ~ this ~ ' as t')".replace("('select", "('(select").replace("t')", "t)')"),
    f"{NEXT}identifier(\"' ~ this.schema ~ '.' ~ this.identifier ~ '\")'",
    f"'with t as (select * from ' ~ this ~ ') ' ~ {NEXT}t'",
]
# They change no row.
HOOKS = [
    "delete from {{ this }} where {{ this.identifier }}.id = -1",
    "update {{ this }} set n = n + 1 where {{ this }}.id = -1",
    "insert into {{ this }} (id, k, n) select 1, 'none', 0 where false",
    "alter table {{ this }} set tblproperties ('hooked' = '{{ invocation_id }}')",
    "call lake.system.rewrite_data_files(table => '{{ this.schema }}.{{ this.identifier }}', "
    "options => map('rewrite-all', 'true'))",
]


@dataclass(frozen=True)
class Build:
    """One run of a model.

    Attributes:
        sql: the model's file.
        change: what it does to the rows.
        foreign_sql: what another writer does meanwhile; `{table}` is the table.
        foreign: what that does to the rows.
        call: before which of the adapter's calls it does it.
        late_change: what the model does to the rows if it reads after that; None for the same.
    """

    sql: str
    change: Change
    foreign_sql: str
    foreign: Change
    call: int
    late_change: Change | None = None

    def results(self, rows: Rows, succeeds: bool) -> list[Rows]:
        """Return what the table may hold: the result of both writes in one order or the other."""
        if not succeeds:
            return [self.foreign(rows)]
        late_change = self.late_change or self.change
        return [late_change(self.foreign(rows)), self.foreign(self.change(rows))]


class RandomIncrements:
    """A model of one strategy that changes at random from step to step.

    Args:
        seed: decides all that follows.
        strategy: the model's.
    """

    def __init__(self, seed: int, strategy: str) -> None:
        self.rng = Random(f"{seed} {strategy}")
        self.strategy = strategy
        self.version = self.rng.choice([1, 2, 2, 3])
        self.layout = self.rng.choice(list(LAYOUTS))
        self.foreign_keys = 0
        self.source: Rows = []

    def first(self) -> tuple[str, Rows]:
        """Return the file of the first run, and its rows; the model's source is empty."""
        rows = self._rows(6)
        return self._file(f"select * from {self.values(rows)}"), rows

    def next_build(self) -> Build:
        """Return the next run of the model."""
        if self.rng.random() < 0.4:
            self.layout = self.rng.choice(list(LAYOUTS))
        if self.rng.random() < 0.3:
            return self._of_source()
        reads_itself = self.rng.random() < 0.5
        sql, change = self._of_itself() if reads_itself else self._of_values()
        foreign_sql, foreign = self._foreign()
        return Build(self._file(sql), change, foreign_sql, foreign, self.rng.randrange(CALLS))

    def _of_source(self) -> Build:
        """Return a run whose source gets other rows meanwhile."""
        before, after = self.source, self._source_rows()
        self.source = after
        return Build(
            self._file(f"select * from {SOURCE}"),
            lambda rows: self._written(rows, before),
            f"insert overwrite {{table}}_source select * from {self.values(after)}",
            lambda rows: rows,
            self.rng.randrange(CALLS),
            lambda rows: self._written(rows, after),
        )

    def _source_rows(self) -> Rows:
        """Return rows of a few keys, most of which the table has after some steps."""
        keys = self.rng.sample(SOURCE_KEYS, 3)
        return [(id, k, self.rng.randrange(100)) for id, k in keys]

    def _of_values(self) -> tuple[str, Change]:
        new = self._rows(self.rng.choice([0, 1, 4]))
        return f"select * from {self.values(new)}", lambda rows: self._written(rows, new)

    def _of_itself(self) -> tuple[str, Change]:
        if self.strategy == "append":
            sql = "select max(id) + 1 as id, 'next' as k, count(*) as n from {{ this }}"
            if self.rng.random() < 0.7:
                # The query runs before the model's statement.
                sql = QUERIED.replace("QUERY", self.rng.choice(OWN_QUERIES))
            return sql, lambda rows: [*rows, (_greatest(rows) + 1, "next", len(rows))]
        sql = "select id, k, n + 1 as n from {{ this }} where n % 2 = 0"

        def change(rows: Rows) -> Rows:
            return self._written(rows, [(i, k, n + 1) for i, k, n in rows if n % 2 == 0])

        return sql, change

    def _written(self, rows: Rows, new: Rows) -> Rows:
        """Return a table's rows after those of an increment are written to it."""
        if self.strategy in KEYED:
            keys = {row[:2] for row in new}
            return [row for row in rows if row[:2] not in keys] + new
        if self.strategy == "insert_overwrite":
            part = LAYOUTS[self.layout]
            replaced = {part(row) for row in new}
            return [row for row in rows if self.layout and part(row) not in replaced] + new
        return rows + new

    def _foreign(self) -> tuple[str, Change]:
        number = self.rng.randrange(40)
        # No key is written twice: a merge could not tell which row is the one.
        self.foreign_keys += 1
        key = 100 + self.foreign_keys
        return self.rng.choice(
            [
                (
                    f"insert into {{table}} (id, k, n) values ({key}, 'foreign', 0)",
                    lambda rows: [*rows, (key, "foreign", 0)],
                ),
                (
                    "update {table} set n = n + 10 where id % 2 = 0",
                    lambda rows: [
                        (i, k, n + 10 * (i is not None and not i % 2)) for i, k, n in rows
                    ],
                ),
                (
                    "call lake.system.rewrite_data_files(table => '{table}', options => "
                    "map('rewrite-all', 'true'))",
                    lambda rows: rows,
                ),
                (
                    # Iceberg takes a partition whose value is null for less than any number.
                    f"delete from {{table}} where id is not null and id < {number}",
                    lambda rows: [row for row in rows if row[0] is None or row[0] >= number],
                ),
            ]
        )

    def _rows(self, count: int) -> Rows:
        ids = [None, *range(1, 40)]
        keys = {(self.rng.choice(ids), self.rng.choice(TEXTS)) for _ in range(count)}
        return [(i, k, self.rng.randrange(6)) for i, k in sorted(keys, key=str)]

    def values(self, rows: Rows) -> str:
        """Return a relation of rows; its texts are bytes, which need no quotes."""
        lines = [
            f"({'null' if i is None else i}, {'null' if k is None else _text(k)}, {n})"
            for i, k, n in rows or [(0, "", 0)]
        ]
        casts = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in COLUMNS.items())
        empty = "" if rows else " where false"
        return f"(select {casts} from values {', '.join(lines)} as t(id, k, n){empty})"

    def _file(self, sql: str) -> str:
        names = [self.rng.choice([name, name.upper()]) for name in COLUMNS]
        self.rng.shuffle(names)
        config: dict[str, Any] = {
            "materialized": "incremental",
            "incremental_strategy": self.strategy,
            "on_schema_change": self.rng.choice(CHANGES),
            "partition_by": list(self.layout),
            "format_version": self.version,
        }
        if self.rng.random() < 0.5:
            hooks = self.rng.sample(HOOKS, self.rng.randint(1, 2))
            config["pre_hook"] = [f"{{% if is_incremental() %}}{h}{{% endif %}}" for h in hooks]
        if self.strategy in KEYED:
            config["unique_key"] = self._spelled(["id", "k"])
            if self.rng.random() < 0.5:
                config["incremental_predicates"] = [ALWAYS]
        if self.strategy == "merge":
            config["merge_engine"] = self.rng.choice(["auto", "auto", "spark"])
            if self.rng.random() < 0.5:
                config["matched_condition"] = "DBT_INTERNAL_SOURCE.n <> DBT_INTERNAL_DEST.n + 1000"
        return model(config, f"select {', '.join(names)} from ({sql})")

    def _spelled(self, names: Sequence[str]) -> list[str]:
        return [self.rng.choice([name, name.upper()]) for name in names]


def _greatest(rows: Rows) -> int:
    return max((row[0] for row in rows if row[0] is not None), default=0)


def _text(text: str) -> str:
    return f"cast(X'{text.encode().hex()}' as string)"
