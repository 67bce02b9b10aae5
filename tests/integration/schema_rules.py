"""Steps of random histories: changes of a table's schema, partitions, order and version."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from dbt.adapters.iceberg_stream.stream.sink.progress import Progress
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from tests.integration.own_writes_machine import EQUALITY, NAMESPACE
from tests.integration.spark_table import SEQUENCE, SparkTable
from tests.integration.table_model import KINDS, Column
from tests.unit.local_tables import live_deletes


class SchemaRules(SparkTable):
    """A table whose schema and layout change."""

    @rule(kind=st.sampled_from(sorted(KINDS)), first=st.booleans())
    def add_column(self, kind: str, first: bool) -> None:
        column = self._new_column(kind)
        place = " first" if first else ""
        self.alter(f"add column {column.name} {KINDS[kind].sql}{place}")
        if first:
            self.table.columns.insert(0, self.table.columns.pop())

    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        others = [
            c for c in self.table.columns if c.number > SEQUENCE and not self._is_partitioned(c)
        ]
        if others:
            column = data.draw(st.sampled_from(others), "column")
            self.alter(f"drop column {column.name}")
            self.table.columns.remove(column)

    @rule(data=st.data())
    def rename_column(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.table.columns), "column")
        self.numbers += 1
        self._change(column, Column(column.number, f"c{self.numbers}", column.kind))
        self.alter(f"rename column {column.name} to c{self.numbers}")

    @rule(data=st.data())
    def widen_column(self, data: st.DataObject) -> None:
        narrow = [c for c in self.table.columns if KINDS[c.kind].widened]
        if not narrow:
            return
        column, loaded = data.draw(st.sampled_from(narrow), "column"), self._load()
        wide, is_key = KINDS[column.kind].widened, column == self.table.key
        self._change(column, Column(column.number, column.name, wide))
        deletes = live_deletes(loaded.io, loaded.metadata)
        if is_key and any(file.content == EQUALITY for file in deletes):
            # Spark would use those that it has read in the type of then, and DuckDB fails.
            progress = Progress(self.sink_id)
            sink = Sink(self.place.lake, (NAMESPACE, self.name), progress, (column.name,))
            sink.claim(self.table.arrow([]).schema)
            self.sql(f"refresh table {self.relation}")
        else:
            self.alter(f"alter column {column.name} type {KINDS[wide].sql}")

    @rule(data=st.data())
    def move_column(self, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.table.columns), "column")
        self.alter(f"alter column {column.name} first")
        self.table.columns.remove(column)
        self.table.columns.insert(0, column)

    # The layout.

    @rule(data=st.data())
    def add_partition_field(self, data: st.DataObject) -> None:
        self._add_partition_field(data)

    @rule(data=st.data())
    def drop_partition_field(self, data: st.DataObject) -> None:
        if self.partitioned:
            name = data.draw(st.sampled_from(sorted(self.partitioned)), "field")
            self.alter(f"drop partition field {name}")
            del self.partitioned[name]

    @rule(data=st.data())
    def replace_partition_field(self, data: st.DataObject) -> None:
        if self.partitioned:
            old = data.draw(st.sampled_from(sorted(self.partitioned)), "field")
            column, transform = self._transform(data)
            if column.number in (n for name, n in self.partitioned.items() if name != old):
                return
            self.numbers += 1
            self.alter(
                f"replace partition field {old} with {transform.format(column.name)} "
                f"as p{self.numbers}"
            )
            del self.partitioned[old]
            self.partitioned[f"p{self.numbers}"] = column.number

    @rule(data=st.data())
    def change_sort_order(self, data: st.DataObject) -> None:
        sortable = [c for c in self.table.columns if c.kind not in ("struct", "array")]
        column = data.draw(st.sampled_from(sortable), "column")
        direction = data.draw(st.sampled_from(["asc", "desc nulls first", "desc"]), "direction")
        ordered = data.draw(st.booleans(), "ordered")
        self.alter(f"write ordered by {column.name} {direction}" if ordered else "write unordered")
        self.sorted_by = column.number if ordered else None

    @precondition(lambda self: self.version < 3)
    @rule()
    def upgrade(self) -> None:
        self.version += 1
        self.alter(f"set tblproperties ('format-version' = '{self.version}')")
