"""Steps of random histories: batches of a stream, and crashes between them."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis.stateful import precondition, rule

from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords
from dbt.adapters.iceberg_stream.stream.batches.batch_writer import BatchWriter
from dbt.adapters.iceberg_stream.stream.batches.runners import in_process
from dbt.adapters.iceberg_stream.stream.errors import RolledBack, StreamError
from dbt.adapters.iceberg_stream.stream.options import StreamOptions
from dbt.adapters.iceberg_stream.stream.query.partition_values import (
    partition_sql,
    partition_values,
)
from dbt.adapters.iceberg_stream.stream.query.query import StreamQuery, get_change_sql
from dbt.adapters.iceberg_stream.stream.sink.known_streams import add_stream
from dbt.adapters.iceberg_stream.stream.sink.progress import Progress, recover
from dbt.adapters.iceberg_stream.stream.sink.rollback import accept_rollback
from dbt.adapters.iceberg_stream.stream.sink.sink import Sink
from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition, open_source
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from dbt.adapters.iceberg_stream.stream.stream import Stream
from dbt.adapters.iceberg_stream.stream.table_stream import TableStream
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from tests.integration.own_writes_machine import NAMESPACE
from tests.integration.spark_table import SEQUENCE, SparkTable
from tests.integration.table_model import KINDS, Row, plain

VIEW = "stream_source"
OP = "op"
ENCODINGS = ("auto", "equality", "position", "copy_on_write")
ACTIONS = st.sampled_from(["upsert", "upsert", "upsert", "delete"])


class StreamRules(SparkTable):
    """A table that a stream writes."""

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
        # PyArrow writes all other batches.
        self._drain(encoding, {"truncates": f"{OP} = 'truncate'"})
        self.table.rows = []
        self._apply_changes(changes[at:])

    @precondition(lambda self: self.version > 1)
    @rule(
        data=st.data(),
        numbers=st.sampled_from(["auto", "one", "many"]),
        encoding=st.sampled_from(["auto", "equality"]),
    )
    def stream_out_of_order(self, data: st.DataObject, numbers: str, encoding: str) -> None:
        """The last change of a key is the one with the highest sequence, wherever it stands."""
        changes = self._changes(data)
        for _, row in changes:
            self.sequence += 1
            row[SEQUENCE] = self.sequence
        order = data.draw(st.permutations(range(len(changes))), "order")
        self._land([changes[place] for place in order])
        by = next(column.name for column in self.table.columns if column.number == SEQUENCE)
        self._drain(encoding, {"sequence_by": (by,), "sequence_numbers": numbers})
        for change in changes:
            if not self._is_late(change[1]):
                self._apply_changes([change])

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

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.landing, ignore_errors=True)

    # How it is done.

    def _changes(self, data: st.DataObject) -> list[tuple[str, Row]]:
        count = data.draw(st.integers(1, 5), "changes")
        return [(data.draw(ACTIONS), self._row(data)) for _ in range(count)]

    def _is_late(self, change: Row) -> bool:
        """Whether the row of a change's key is newer, whoever has written it."""
        of_key = (row for row in self.table.rows if plain(row[0]) == plain(change[0]))
        return any((row.get(SEQUENCE) or 0) > change[SEQUENCE] for row in of_key)

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
            # What it has read is unknown: another one takes over.
            self.sinks += 1
            add_stream(self.place.lake, (NAMESPACE, self.name), self.sink_id)
        self.streamed = streamed

    def _run_stream(self, encoding: str, settings: dict[str, Any]) -> None:
        lake, name, loaded = self.place.lake, (NAMESPACE, self.name), self._load()
        target = WriteTarget.of(loaded.metadata, loaded.io)
        options = StreamOptions(
            self.sink_id,
            (self.table.key.name,),
            deletes=f"{OP} = 'delete'",
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
            partitions=partial(partition_values, spec=target.spec, schema=target.schema),
        )
        stream = TableStream(writer, StreamStatus(self.name))
        Stream(lambda: self.place.spark, [stream], window=2).drain()

    def _ddl(self) -> str:
        columns = [f"{quote(c.name)} {KINDS[c.kind].sql}" for c in self.table.columns]
        return ", ".join([*columns, f"{OP} string"])
