"""Random histories of a table by our own writers, against a model of the truth."""

from __future__ import annotations

import multiprocessing
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from pyiceberg.manifest import DataFileContent

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.maintenance.check.check import check_table
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.tables.drop import drop_table
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.engine import merge
from dbt.adapters.iceberg_stream.tables.merge.plan import MergePlan
from tests.integration.table_model import (
    KEY_KINDS,
    KINDS,
    NANOSECONDS,
    Column,
    Row,
    Table,
    counted,
    kind_of,
    plain,
)
from tests.integration.tables import read_by_duckdb
from tests.lost_files import missing_files
from tests.unit.local_tables import live_deletes

EQUALITY = DataFileContent.EQUALITY_DELETES
NAMESPACE = "s"


def has_void_field(metadata: Metadata) -> bool:
    return any(f["transform"] == "void" for f in _partition_fields(metadata))


def has_lost_source(metadata: Metadata) -> bool:
    """Whether a spec, maybe a former one, has a field whose source column was dropped."""
    schemas, current = metadata["schemas"], metadata["current-schema-id"]
    (schema,) = (schema for schema in schemas if schema["schema-id"] == current)
    ids = {field["id"] for field in schema["fields"]}
    return any(field["source-id"] not in ids for field in _partition_fields(metadata))


def _partition_fields(metadata: Metadata) -> list[dict[str, Any]]:
    return [field for spec in metadata["partition-specs"] for field in spec["fields"]]


class Crash(BaseException):
    """The writer dies here; nothing of it catches this."""


class DuckDB:
    """DuckDB in a process of its own, which some tables bring down."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def read(self, location: str) -> pa.Table:
        try:
            return self._process.submit(read_by_duckdb, location).result()
        except (BrokenProcessPool, duckdb.InternalException, duckdb.FatalException):
            # After an error of its own it reads nothing any more.
            self.close()
            self._start()
            raise

    def close(self) -> None:
        self._process.shutdown()


@dataclass(frozen=True)
class Place:
    """Where machines work: a catalog, an engine that reads and writes it, and a scratch folder."""

    lake: IcebergCatalog
    spark: Session
    folder: Path
    duckdb: DuckDB


class OwnWrites(RuleBasedStateMachine):
    """One table, written by our own writers alone, without Spark: types that Spark does not have."""

    place: ClassVar[Place]
    key_kinds: ClassVar[tuple[str, ...]] = (*KEY_KINDS, *NANOSECONDS)
    kinds: ClassVar[tuple[str, ...]] = (*sorted(KINDS), *NANOSECONDS * 3)
    versions: ClassVar[tuple[int, ...]] = (3,)

    def __init__(self) -> None:
        super().__init__()
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.relation = f"{NAMESPACE}.{self.name}"
        self.table = Table([])
        self.version = 2
        self.numbers = self.reads = 0
        self.ever: list[Column] = []

    # The table, before its first rows.

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        self.version = data.draw(st.sampled_from(self.versions), "version")
        key = data.draw(st.sampled_from(self.key_kinds), "key")
        others = data.draw(st.lists(st.sampled_from(self.kinds), min_size=1, max_size=4), "others")
        # The second column orders the changes of a stream.
        for kind in (key, "bigint", *others):
            self._new_column(kind)
        self._create(data)

    def _create(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        properties = {"format-version": str(self.version)}
        reader = self.table.arrow(rows).to_reader()
        name = (NAMESPACE, self.name)
        ingest(self.place.lake, name, reader, Mode.CREATE, properties=properties)
        self.table.rows = rows

    # Our writers.

    @rule(data=st.data())
    def ingest_rows(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        self._ingest(rows, Mode.APPEND)
        self.table.rows += rows

    @rule(data=st.data())
    def replace_all(self, data: st.DataObject) -> None:
        rows = self._rows(data)
        if self._ingest(rows, Mode.REPLACE):
            self.table.rows = rows

    @rule(data=st.data(), inserts=st.booleans())
    def merge_rows(self, data: st.DataObject, inserts: bool) -> None:
        rows = self._distinct(self._rows(data))
        updates = self._updated(data)
        plan = MergePlan((self.table.key.name,), tuple(c.name for c in updates), inserts)
        if self._merge(plan, rows):
            self._apply_merge(rows, updates, inserts)

    @rule(data=st.data(), unmatched=st.booleans())
    def merge_deletes(self, data: st.DataObject, unmatched: bool) -> None:
        rows = self._distinct(self._rows(data))
        deletes = Deletes.UNMATCHED if unmatched else Deletes.MATCHED
        if self._merge(MergePlan((self.table.key.name,), (), False, deletes), rows):
            keys = {plain(row[0]) for row in rows}
            self.table.delete(lambda row: (plain(row[0]) in keys) != unmatched)

    # A crash.

    @rule(data=st.data(), after=st.booleans())
    def crash_of_an_ingest(self, data: st.DataObject, after: bool) -> None:
        rows = self._rows(data)
        with self._crash(after):
            self._ingest(rows, Mode.APPEND)
        if after:
            self.table.rows += rows

    # What must hold after each step.

    @invariant()
    def everybody_reads_the_truth(self) -> None:
        if not self.table.columns:
            return
        loaded = self._load()
        truth = self.table.visible()
        self._read(loaded, truth)
        wrong = [f for f in check_table(loaded, data=True).findings if f.severity != "note"]
        left = self._left_behind(wrong)
        assert not left, left

    def teardown(self) -> None:
        loaded = self.place.lake.load((NAMESPACE, self.name))
        assert loaded is None or missing_files(loaded) == []
        drop_table(self.place.lake, (NAMESPACE, self.name))

    def _read(self, loaded: LoadedTable, truth: Counter[tuple[Any, ...]]) -> None:
        equality = any(f.content == EQUALITY for f in live_deletes(loaded.io, loaded.metadata))
        if self._duckdb_reads(loaded):
            self._compare("DuckDB", *self._duckdb_rows(loaded, truth, equality))
        if not equality:
            table = self.place.lake.pyiceberg.load_table((NAMESPACE, self.name))
            self._compare("PyIceberg", counted(table.scan().to_arrow(), self.table.columns), truth)

    def _left_behind(self, wrong: list[Finding]) -> list[Finding]:
        """What is wrong, but for what is of a stream that nobody runs any more."""
        return wrong

    # How it is done.

    def _load(self) -> LoadedTable:
        loaded = self.place.lake.load((NAMESPACE, self.name))
        assert loaded is not None
        return loaded

    def _new_column(self, kind: str) -> Column:
        self.numbers += 1
        column = Column(len(self.ever), f"c{self.numbers}", kind)
        self.ever.append(column)
        self.table.columns.append(column)
        return column

    def _change(self, old: Column, new: Column) -> None:
        self.table.columns[self.table.columns.index(old)] = new

    def _value(self, data: st.DataObject, column: Column) -> Any:
        return data.draw(st.sampled_from([None, *kind_of(column.kind).values]), column.name)

    def _row(self, data: st.DataObject) -> Row:
        return {column.number: self._value(data, column) for column in self.table.columns}

    def _rows(self, data: st.DataObject) -> list[Row]:
        return [self._row(data) for _ in range(data.draw(st.integers(1, 4), "rows"))]

    def _distinct(self, rows: list[Row]) -> list[Row]:
        return list({plain(row[0]): row for row in rows}.values())

    def _updated(self, data: st.DataObject) -> list[Column]:
        others = [c for c in self.table.columns if c.number]
        return [c for c in others if data.draw(st.booleans(), f"updates {c.name}")]

    def _apply_merge(self, rows: list[Row], updates: list[Column], inserts: bool) -> None:
        matched = set()
        by_key = {plain(row[0]): row for row in rows}
        for row in self.table.rows:
            new = by_key.get(plain(row[0]))
            if new is not None:
                matched.add(plain(row[0]))
                row.update({c.number: new[c.number] for c in updates})
        if inserts:
            self.table.rows += [row for row in rows if plain(row[0]) not in matched]

    def _delete_keys(self, keys: list[Any]) -> None:
        wanted = {plain(key) for key in keys}
        self.table.delete(lambda row: plain(row[0]) in wanted)

    def _ingest(self, rows: list[Row], mode: Mode) -> bool:
        """Whether our writer has done it: partitions by two fields of a column are Spark's."""
        ingest(self.place.lake, (NAMESPACE, self.name), self.table.arrow(rows).to_reader(), mode)
        return True

    def _merge(self, plan: MergePlan, rows: list[Row]) -> bool:
        """Whether our engine has merged: what it leaves to Spark is another rule's."""
        source = self.table.arrow(rows)

        def stream() -> Iterator[Any]:
            yield source.schema
            yield from source.to_batches()

        name = (NAMESPACE, self.name)
        result = merge(self.place.lake, name, plan, {}, stream, uuid.uuid4().hex, {})
        return result.spark_because is None

    @contextmanager
    def _crash(self, after: bool) -> Iterator[None]:
        """The first commit that makes a snapshot is the last thing that happens, or not even it."""
        lake = self.place.lake
        real = lake.commit

        def commit(base: Any, requirements: Any, updates: Any) -> None:
            makes_snapshot = any("Snapshot" in type(update).__name__ for update in updates)
            if makes_snapshot and not after:
                raise Crash
            real(base, requirements, updates)
            if makes_snapshot:
                raise Crash

        lake.commit = commit  # type: ignore[method-assign]
        try:
            yield
        except Crash:
            pass
        finally:
            lake.commit = real  # type: ignore[method-assign]

    def _duckdb_reads(self, loaded: LoadedTable) -> bool:
        """Whether DuckDB 1.5 can.

        It cannot read what version 1 has left in an upgraded table, nor void fields, and crashes
        where the source column of a partition field was dropped.
        """
        metadata = loaded.metadata
        if has_void_field(metadata) or has_lost_source(metadata):
            return False
        current = metadata["current-snapshot-id"]
        snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == current)
        return metadata["format-version"] == 1 or snapshot.get("sequence-number", 0) > 0

    def _duckdb_rows(
        self, loaded: LoadedTable, truth: Counter[tuple[Any, ...]], equality: bool
    ) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
        """What DuckDB reads, and what it should: it loses NULL keys where equality deletes are."""
        try:
            read = self.place.duckdb.read(loaded.location)
        except duckdb.InternalException as error:
            if equality and "Comparison on NULL" in str(error):
                return truth, truth
            raise
        rows = counted(read, self.table.columns)
        if not equality:
            return rows, truth
        key = self.table.columns.index(self.table.key)
        with_key = (
            Counter({row: n for row, n in c.items() if row[key] is not None}) for c in (rows, truth)
        )
        return tuple(with_key)  # type: ignore[return-value]

    def _compare(
        self, who: str, rows: Counter[tuple[Any, ...]], truth: Counter[tuple[Any, ...]]
    ) -> None:
        assert rows == truth, f"{who}: too many {rows - truth}, missing {truth - rows}"


def run_machine(
    machine: type[OwnWrites], place: Place, number: int, steps: int, examples: int = 1
) -> None:
    """Run histories of so many steps, the same for the same number each time."""
    bound = type(machine.__name__, (machine,), {"place": place})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seed(number)(bound), settings=chosen)
