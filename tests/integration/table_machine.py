"""Random histories of a table by our writers, streams and Spark, read by several engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import rule

from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from tests.integration.own_writes_machine import has_lost_source
from tests.integration.schema_rules import SchemaRules
from tests.integration.spark_rules import SparkRules
from tests.integration.table_model import KINDS, plain

# What another writer may do to a table, beside its rows.
OF_COLUMNS = ("add_column", "drop_column", "rename_column", "widen_column", "move_column")
OF_FILES = ("add_partition_field", "drop_partition_field", "rewrite_data_files")
# By format version, what a table has behind it when a history begins; mostly nothing.
EXPIRED = "_compacted_between_batches_and_expired"
PASTS: dict[int, tuple[str | None, ...]] = {
    1: (None,),
    2: (None, None, EXPIRED, "_deleted_by_position_and_upgraded"),
    3: (None, None, EXPIRED),
}


class TableMachine(SchemaRules, SparkRules):
    """One table, written by our writers, by streams, by Spark, and by two of them at once."""

    def _create(self, data: st.DataObject) -> None:
        columns = ", ".join(f"{c.name} {KINDS[c.kind].sql}" for c in self.table.columns)
        self.sql(
            f"create table {self.relation} ({columns}) using iceberg "
            f"tblproperties ('format-version' = '{self.version}')"
        )
        if data.draw(st.booleans(), "partitioned"):
            self._add_partition_field(data)
        self.landing.mkdir(parents=True)
        past = data.draw(st.sampled_from(PASTS[self.version]), "past")
        if past is not None:
            getattr(self, past)(data)

    # What random steps alone seldom come to.

    def _deleted_by_position_and_upgraded(self, data: st.DataObject) -> None:
        rows = self._distinct(self._rows(data))
        # In one file, unless partitions part them.
        self._ingest(rows, Mode.APPEND)
        self.table.rows += rows
        self._set_mode("merge-on-read")
        self.sql(f"delete from {self.relation} where {self._is_in([rows[0][0]])}")
        self._delete_keys([rows[0][0]])
        self.everybody_reads_the_truth()
        self.upgrade()
        changes = [("delete", rows[-1])]
        self._land(changes)
        self._drain("position", {})
        self._apply_changes(changes)
        self.everybody_reads_the_truth()

    def _compacted_between_batches_and_expired(self, data: st.DataObject) -> None:
        for step in (
            partial(self.stream, data=data, encoding="equality", batch_rows=3, numbers="auto"),
            partial(self.rewrite_data_files, everything=True),
            partial(self.stream, data=data, encoding="equality", batch_rows=3, numbers="auto"),
            partial(self.expire_snapshots, keep=2),
        ):
            step()
            self.everybody_reads_the_truth()

    # A second writer between our load and our commit.

    @rule(data=st.data(), theirs=st.sampled_from(["append", "delete", *OF_COLUMNS]))
    def ingest_amid_another_writer(self, data: st.DataObject, theirs: str) -> None:
        rows = self._rows(data)
        with self._meanwhile(lambda: self._other_writer(theirs, data)) as happened:
            self._ingest(rows, Mode.APPEND)
        self.table.rows += rows
        assert happened

    @rule(data=st.data(), theirs=st.sampled_from(["append", "delete", *OF_COLUMNS, *OF_FILES]))
    def merge_amid_another_writer(self, data: st.DataObject, theirs: str) -> None:
        rows = self._distinct(self._rows(data))
        updates = self._updated(data)
        plan = MergePlan((self.table.key.name,), tuple(c.name for c in updates), True)
        there = {plain(row[0]) for row in self.table.rows}
        with self._meanwhile(lambda: self._other_writer(theirs, data)):
            merged = self._merge(plan, rows)
        if not updates:
            # It changes no row that was there, so that it comes before who deletes such rows.
            rows = [row for row in rows if plain(row[0]) not in there]
        if merged:
            self._apply_merge(rows, updates, True)

    # How it is done.

    def _left_behind(self, wrong: list[Finding]) -> list[Finding]:
        own = f"stream {self.sink_id}"
        wrong = [f for f in wrong if f.code != "stream-progress" or f.where == own]
        if has_lost_source(self._load().metadata):
            # Iceberg 1.12 writes null for values of such fields when it writes a manifest again.
            wrong = [f for f in wrong if f.code != "partition-value"]
        return wrong

    def _other_writer(self, what: str, data: st.DataObject) -> None:
        if what == "append":
            self.spark_insert(data)
        elif what == "delete":
            self.spark_delete(data, "copy-on-write")
        elif what == "add_column":
            self.add_column(data.draw(st.sampled_from(sorted(KINDS)), "kind"), first=False)
        elif what == "rewrite_data_files":
            self.rewrite_data_files(everything=True)
        else:
            getattr(self, what)(data)

    @contextmanager
    def _meanwhile(self, theirs: Callable[[], None]) -> Iterator[list[int]]:
        """Another writer commits between the load and the first commit of ours."""
        lake, happened = self.place.lake, []
        real = lake.commit

        def commit(*arguments: Any) -> None:
            if not happened:
                happened.append(1)
                theirs()
            real(*arguments)

        lake.commit = commit  # type: ignore[method-assign]
        try:
            yield happened
        finally:
            lake.commit = real  # type: ignore[method-assign]
