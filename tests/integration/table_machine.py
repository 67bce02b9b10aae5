"""Random histories of a table by our writers, streams and Spark, read by several engines."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis.stateful import (
    precondition,
    rule,
)

from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.errors import RolledBack, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.partition_sql import partition_sql
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.row_deltas.positions import live_deletes
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, recover
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink, accept_rollback
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from tests.integration.own_writes_machine import (
    EQUALITY,
    NAMESPACE,
    OwnWrites,
    has_lost_source,
)
from tests.integration.table_model import (
    KEY_KINDS,
    KINDS,
    Column,
    Row,
    counted,
    literal,
    plain,
)

VIEW = "stream_source"
OP = "op"
# The number of the column that orders changes.
SEQUENCE = 1
ENCODINGS = ("equality", "position", "copy_on_write")
ACTIONS = st.sampled_from(["upsert", "upsert", "upsert", "delete"])
# By format version, what a table has behind it when a history begins; mostly nothing.
EXPIRED = "_compacted_between_batches_and_expired"
PASTS: dict[int, tuple[str | None, ...]] = {
    1: (None,),
    2: (None, None, EXPIRED, "_deleted_by_position_and_upgraded"),
    3: (None, None, EXPIRED),
}


class TableMachine(OwnWrites):
    """One table, written by our writers, by streams, by Spark, and by two of them at once."""

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

    # Streams.

    @precondition(lambda self: self.version > 1)
    @rule(
        data=st.data(),
        encoding=st.sampled_from(ENCODINGS),
        batch_rows=st.sampled_from([3, 1_000_000]),
        numbers=st.sampled_from(["auto", "one", "many"]),
    )
    def stream(self, data: st.DataObject, encoding: str, batch_rows: int, numbers: str) -> None:
        batches = [self._changes(data) for _ in range(data.draw(st.integers(1, 2), "files"))]
        for changes in batches:
            self._land(changes)
        options = {"batch_rows": batch_rows, "sequence_numbers": numbers}
        self._drain(encoding, options)
        for changes in batches:
            self._apply_changes(changes)

    @precondition(lambda self: self.version > 1)
    @rule(data=st.data(), encoding=st.sampled_from(ENCODINGS))
    def stream_truncate(self, data: st.DataObject, encoding: str) -> None:
        changes = self._changes(data)
        at = data.draw(st.integers(0, len(changes)), "truncate before")
        self._land([*changes[:at], ("truncate", {0: None}), *changes[at:]])
        self._drain(encoding, {})
        self.table.rows = []
        self._apply_changes(changes[at:])

    @precondition(lambda self: self.version > 1)
    @rule(data=st.data(), numbers=st.sampled_from(["auto", "one", "many"]))
    def stream_out_of_order(self, data: st.DataObject, numbers: str) -> None:
        """The last change of a key is the one with the highest sequence, wherever it stands."""
        changes = self._changes(data)
        for _, row in changes:
            self.sequence += 1
            row[SEQUENCE] = self.sequence
        order = data.draw(st.permutations(range(len(changes))), "order")
        self._land([changes[place] for place in order])
        by = next(column.name for column in self.table.columns if column.number == SEQUENCE)
        self._drain("equality", {"sequence_by": (by,), "sequence_numbers": numbers})
        self._apply_changes(changes)

    # A second writer between our load and our commit, and a crash.

    @rule(data=st.data(), theirs=st.sampled_from(["append", "delete"]))
    def ingest_amid_another_writer(self, data: st.DataObject, theirs: str) -> None:
        rows, other = self._rows(data), self._rows(data)
        with self._meanwhile(lambda: self._other_writer(theirs, other)) as happened:
            self._ingest(rows, Mode.APPEND)
        self.table.rows += rows
        assert happened

    @rule(data=st.data(), theirs=st.sampled_from(["append", "delete"]))
    def merge_amid_another_writer(self, data: st.DataObject, theirs: str) -> None:
        rows, other = self._distinct(self._rows(data)), self._rows(data)
        updates = self._updated(data)
        plan = MergePlan((self.table.key.name,), tuple(c.name for c in updates), True)
        there = {plain(row[0]) for row in self.table.rows}
        with self._meanwhile(lambda: self._other_writer(theirs, other)):
            merged = self._merge(plan, rows)
        if not updates:
            # It changes no row that was there, so that it comes before who deletes such rows.
            rows = [row for row in rows if plain(row[0]) not in there]
        if merged:
            self._apply_merge(rows, updates, True)

    @precondition(lambda self: self.version > 1)
    @rule(data=st.data(), after=st.booleans(), encoding=st.sampled_from(ENCODINGS))
    def crash_of_a_stream(self, data: st.DataObject, after: bool, encoding: str) -> None:
        """Whatever the moment, the next run makes the table what the source says."""
        changes = self._changes(data)
        self._land(changes)
        with self._crash(after):
            self._drain(encoding, {})
        self._drain(encoding, {})
        self._apply_changes(changes)

    # Spark's writers.

    @rule(data=st.data())
    def spark_insert(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._insert(rows)
        self.table.rows += rows

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_delete(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        keys = self._keys(data)
        self.sql(f"delete from {self.relation} where {self._is_in(keys)}")
        self._delete_keys(keys)

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_update(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        keys, column = self._keys(data), data.draw(st.sampled_from(self.table.columns), "column")
        value = self._value(data, column)
        new = literal(value, column.kind)
        self.sql(f"update {self.relation} set {column.name} = {new} where {self._is_in(keys)}")
        wanted = {plain(key) for key in keys}
        for row in self.table.rows:
            if plain(row[0]) in wanted:
                row[column.number] = value

    @rule(data=st.data(), mode=st.sampled_from(["copy-on-write", "merge-on-read"]))
    def spark_merge(self, data: st.DataObject, mode: str) -> None:
        self._set_mode(mode)
        rows, key = self._distinct(self._rows(data)), self.table.key.name
        self._view("new_rows", rows)
        self.sql(
            f"merge into {self.relation} t using new_rows n on t.{key} <=> n.{key} "
            "when matched then update set * when not matched then insert *"
        )
        self._apply_merge(rows, self.table.columns, True)

    @rule(data=st.data())
    def spark_overwrite(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._view("new_rows", rows)
        self.sql(f"insert overwrite {self.relation} select * from new_rows")
        self.table.rows = rows

    @rule(data=st.data())
    def spark_replace(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._view("new_rows", rows)
        columns = ", ".join(
            f"cast({c.name} as {KINDS[c.kind].sql}) as {c.name}" for c in self.table.columns
        )
        self.sql(
            f"create or replace table {self.relation} using iceberg as select {columns} from new_rows"
        )
        self.table.rows, self.partitioned, self.sorted_by = rows, {}, None
        # None of what the stream has written is in it.
        self._resume(-1 if self.streamed else 0)

    # Maintenance.

    @rule(everything=st.booleans())
    def rewrite_data_files(self, everything: bool) -> None:
        options = (
            "map('rewrite-all', 'true')" if everything else "map('delete-file-threshold', '1')"
        )
        self.call("rewrite_data_files", f"options => {options}")

    @rule()
    def rewrite_manifests(self) -> None:
        try:
            self.call("rewrite_manifests")
        except StatementError as error:
            # Nor can Iceberg 1.12 do that where the source of a partition field was dropped.
            assert has_lost_source(self._load().metadata), error

    @precondition(lambda self: self.version > 1)
    @rule()
    def rewrite_position_delete_files(self) -> None:
        try:
            self.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
        except StatementError as error:
            # Iceberg 1.12 takes partitions of two specs for one, where a field was dropped.
            assert "expected to have same spec id" in str(error), error

    @rule(keep=st.integers(1, 3))
    def expire_snapshots(self, keep: int) -> None:
        self.call(
            "expire_snapshots",
            f"older_than => timestamp '2100-01-01 00:00:00', retain_last => {keep}",
        )
        self.history = {one: self.history[one] for one in self._snapshots() if one in self.history}

    @rule(back=st.integers(0, 4))
    def roll_back(self, back: int) -> None:
        ancestors = [one for one in self._ancestors() if one in self.history]
        if not ancestors:
            return
        snapshot = ancestors[back % len(ancestors)]
        self.call("rollback_to_snapshot", f"snapshot_id => {snapshot}")
        rows, streamed = self.history[snapshot]
        self.table.rows = [dict(row) for row in rows]
        self._resume(streamed)

    @rule(kind=st.sampled_from(["branch", "tag"]))
    def make_ref(self, kind: str) -> None:
        if self._snapshots():
            self.numbers += 1
            self.sql(f"alter table {self.relation} create {kind} r{self.numbers} retain 5 days")

    # The schema.

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

    # What must hold after each step.

    def _read(self, loaded: LoadedTable, truth: Counter[tuple[Any, ...]]) -> None:
        self._compare("Spark", self._spark_rows(), truth)
        current = loaded.metadata.get("current-snapshot-id")
        if current not in (None, -1):
            super()._read(loaded, truth)
            self._compare_filtered()
            self.history.setdefault(current, (self.table.copied(), self.streamed))

    def _left_behind(self, wrong: list[Finding]) -> list[Finding]:
        own = f"stream {self.sink_id}"
        wrong = [f for f in wrong if f.code != "stream-progress" or f.where == own]
        if has_lost_source(self._load().metadata):
            # Iceberg 1.12 writes null for values of such fields when it writes a manifest again.
            wrong = [f for f in wrong if f.code != "partition-value"]
        return wrong

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.landing, ignore_errors=True)

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

    def _other_writer(self, what: str, rows: list[Row]) -> None:
        if what == "append":
            self._insert(rows)
            self.table.rows += rows
        else:
            self._set_mode("copy-on-write")
            keys = [row[0] for row in rows]
            self.sql(f"delete from {self.relation} where {self._is_in(keys)}")
            self._delete_keys(keys)

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

    def _changes(self, data: st.DataObject) -> list[tuple[str, Row]]:
        count = data.draw(st.integers(1, 5), "changes")
        return [(data.draw(ACTIONS), self._row(data)) for _ in range(count)]

    def _apply_changes(self, changes: list[tuple[str, Row]]) -> None:
        for action, row in changes:
            if action == "delete":
                self._delete_keys([row[0]])
            else:
                self.table.upsert([row])

    def _land(self, changes: list[tuple[str, Row]]) -> None:
        self.landed += 1
        rows = self.table.arrow([row for _, row in changes])
        rows = rows.append_column(OP, pa.array([action for action, _ in changes], pa.string()))
        pq.write_table(rows, self.landing / f"{self.landed:06}.parquet")

    def _drain(self, encoding: str, settings: dict[str, Any]) -> None:
        """Take in what has landed; a table with deletes of other kinds is for equality deletes."""
        before = self._load().metadata.get("current-snapshot-id")
        try:
            self._run_stream(encoding, settings)
        except StreamError as error:
            assert encoding == "copy_on_write" and "Compact it" in str(error), error
            self._run_stream("equality", settings)
        if self._load().metadata.get("current-snapshot-id") != before:
            self.streamed = self.landed

    def _resume(self, streamed: int) -> None:
        """The stream notices that the table was set back, and goes on when it is told to."""
        loaded = self._load()
        try:
            recover(loaded.metadata, self.sink_id)
            assert streamed == self.streamed, "the stream has not noticed the rollback"
            return
        except RolledBack:
            pass
        # Its source has moved on: what it would apply again is no longer there.
        shutil.rmtree(self.landing)
        self.landing.mkdir()
        try:
            accept_rollback(self.place.lake, (NAMESPACE, self.name), self.sink_id)
        except StreamError:
            self.sinks += 1
        self.streamed = streamed

    @property
    def sink_id(self) -> str:
        return f"sink{self.sinks}"

    def _run_stream(self, encoding: str, settings: dict[str, Any]) -> None:
        lake, name, loaded = self.place.lake, (NAMESPACE, self.name), self._load()
        target = WriteTarget.of(loaded.metadata, loaded.io)
        options = StreamOptions(
            self.sink_id,
            (self.table.key.name,),
            deletes=f"{OP} = 'delete'",
            truncates=f"{OP} = 'truncate'",
            delete_encoding=encoding,
            **settings,
        )
        names = [column.name for column in self.table.columns]
        query = StreamQuery(
            get_change_sql(f"select * from {VIEW}", VIEW),
            VIEW,
            self.relation,
            names,
            options,
            partition_sql("lake", target.spec, target.schema),
        )
        spec = {
            "type": "files",
            "path": str(self.landing),
            "format": "parquet",
            "columns": self._ddl(),
        }
        definition = SourceDefinition((NAMESPACE, "x"), "s.x", spec)
        writer = BatchWriter(
            source=open_source(definition, lake, self.landing, {}),
            query=query,
            sink=Sink(lake, name, Progress(options.sink_id), query.keys),
            options=options,
            runner=in_process,
            bad_records=BadRecords(None, "", 0),
            schema=self.table.arrow([]).schema,
        )
        stream = TableStream(writer, StreamStatus(self.name))
        Stream(lambda: self.place.spark, [stream], window=2).drain()

    def _ddl(self) -> str:
        columns = [f"{quote(c.name)} {KINDS[c.kind].sql}" for c in self.table.columns]
        return ", ".join([*columns, f"{OP} string"])

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
