"""A table of random histories, as Spark creates, changes and reads it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from tests.integration.own_writes_machine import OwnWrites, has_lost_source
from tests.integration.table_model import KEY_KINDS, KINDS, Column, Row, counted, literal, plain

# The number of the column that orders changes.
SEQUENCE = 1


class SparkTable(OwnWrites):
    """A table that Spark changes and reads, with its past states."""

    key_kinds = KEY_KINDS
    kinds = tuple(sorted(KINDS))
    versions = (1, 2, 2, 3)

    def __init__(self) -> None:
        super().__init__()
        # Of each snapshot the rows, and how many files the stream had taken in.
        self.history: dict[int, tuple[list[Row], int]] = {}
        self.landed = self.streamed = self.sinks = self.sequence = 0
        self.landing = self.place.folder / self.name
        self.partitioned: dict[str, int] = {}
        self.sorted_by: int | None = None

    def _read(self, loaded: LoadedTable, truth: Counter[tuple[Any, ...]]) -> None:
        self._compare("Spark", self._spark_rows(), truth)
        current = loaded.metadata.get("current-snapshot-id")
        if current not in (None, -1):
            super()._read(loaded, truth)
            self._compare_filtered()
            self.history.setdefault(current, (self.table.copied(), self.streamed))

    # How it is done.

    def sql(self, text: str) -> None:
        self.place.spark.run(text)

    def alter(self, text: str) -> None:
        self.sql(f"alter table {self.relation} {text}")

    def call(self, procedure: str, arguments: str = "") -> None:
        more = f", {arguments}" if arguments else ""
        self.sql(f"call lake.system.{procedure}(table => '{self.relation}'{more})")

    def _is_partitioned(self, column: Column) -> bool:
        sources = {*self.partitioned.values(), self.sorted_by}
        return column.number in sources

    def _transform(self, data: st.DataObject) -> tuple[Column, str]:
        possible = [c for c in self.table.columns if KINDS[c.kind].transforms]
        column = data.draw(st.sampled_from(possible), "column")
        return column, data.draw(st.sampled_from(KINDS[column.kind].transforms), "transform")

    def _add_partition_field(self, data: st.DataObject) -> None:
        # Two fields of one column: our writers leave those to Spark.
        column, transform = self._transform(data)
        if self._is_partitioned(column) or len(self.partitioned) > 1:
            return
        self.numbers += 1
        self.alter(f"add partition field {transform.format(column.name)} as p{self.numbers}")
        self.partitioned[f"p{self.numbers}"] = column.number

    def _keys(self, data: st.DataObject) -> list[Any]:
        return [self._value(data, self.table.key) for _ in range(data.draw(st.integers(1, 3)))]

    def _view(self, name: str, rows: list[Row]) -> None:
        self.place.spark.register(name, self.table.arrow(rows))

    def _is_in(self, keys: list[Any]) -> str:
        key = self.table.key
        return " or ".join(f"{key.name} <=> {literal(value, key.kind)}" for value in keys)

    def _insert(self, rows: list[Row]) -> None:
        self._view("new_rows", rows)
        self.sql(f"insert into {self.relation} select * from new_rows")

    def _set_mode(self, mode: str) -> None:
        # Iceberg 1.12 cannot write positions where the source of a partition field was dropped.
        if self.version == 1 or has_lost_source(self._load().metadata):
            mode = "copy-on-write"
        modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update"))
        self.alter(f"set tblproperties ({modes}, 'write.merge.mode' = '{mode}')")

    def _spark_rows(self) -> Counter[tuple[Any, ...]]:
        return counted(self.place.spark.query(f"select * from {self.relation}"), self.table.columns)

    def _compare_filtered(self) -> None:
        """Some row is also found by its value: what engines skip has no such row."""
        self.reads += 1
        # Of the two zeros Spark finds the one that is asked for where it asks the files, else both.
        blind = ("struct", "array", "float", "double")
        columns = [c for c in self.table.columns if c.kind not in blind]
        column = columns[self.reads % len(columns)]
        if not self.table.rows:
            return
        value = self.table.rows[self.reads % len(self.table.rows)].get(column.number)
        same = [row for row in self.table.rows if plain(row.get(column.number)) == plain(value)]
        condition = f"{column.name} <=> {literal(value, column.kind)}"
        sql = f"select count(*) as n from {self.relation} where {condition}"
        rows = self.place.spark.query(sql)["n"][0].as_py()
        assert rows == len(same), f"Spark finds {rows} rows where {condition}, not {len(same)}"

    def _snapshots(self) -> list[int]:
        return [s["snapshot-id"] for s in self._load().metadata.get("snapshots") or []]

    def _ancestors(self) -> list[int]:
        metadata = self._load().metadata
        snapshots = metadata.get("snapshots") or []
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in snapshots}
        chain, one = [], metadata.get("current-snapshot-id")
        while one in parents:
            chain.append(one)
            one = parents[one]
        return chain

    @property
    def sink_id(self) -> str:
        return f"sink{self.sinks}"
