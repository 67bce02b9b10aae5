"""`iceberg-stream diff` of a large table after a merge, and after it was built again."""

from __future__ import annotations

import time
import uuid
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyroaring import BitMap

from benchmarks.bench import Bench
from benchmarks.harness import BenchmarkError, Measure, Result, alternate
from benchmarks.read.upserts import Tables
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.diff.diff import compare_metadata, compare_rows
from dbt.adapters.iceberg_stream.diff.difference import RowDifference
from dbt.adapters.iceberg_stream.diff.version import find_versions
from dbt.adapters.iceberg_stream.tables.commit.change import AddedFiles, Change
from dbt.adapters.iceberg_stream.tables.commit.committer import Committer
from dbt.adapters.iceberg_stream.tables.commit.live_files import live_files
from dbt.adapters.iceberg_stream.tables.deletes.position_files import write_deletes_by_position
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.files.writer import DataFileWriter
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Mode, ingest

ROWS, DATA_FILES, SHARE = 5_000_000, 50, 100
STATES = np.array(["open", "paid", "sent"])
JOIN = "Spark's full outer join of both versions"
SCAN = "Spark's scan of both versions"
VALUES = ("amount", "state", "note")


class Case:
    """A table of 5,000,000 rows in 50 data files, and its newer version."""

    def __init__(self, bench: Bench) -> None:
        self.tables, self.rows = Tables(bench), bench.size(ROWS)
        self.name = f"d{uuid.uuid4().hex[:8]}"
        self.changed = self.rows // SHARE
        for number, ids in enumerate(np.array_split(np.arange(self.rows), DATA_FILES)):
            self.ingest(orders(ids), Mode.APPEND if number else Mode.CREATE)

    @property
    def table(self) -> LoadedTable:
        table = self.tables.rig.lake.load(("s", self.name))
        assert table is not None
        return table

    def ingest(self, rows: pa.Table, mode: Mode) -> None:
        properties = {"format-version": "3"} if mode is Mode.CREATE else None
        lake = self.tables.rig.lake
        ingest(lake, ("s", self.name), rows.to_reader(), mode, properties=properties)

    def merge(self, ids: np.ndarray) -> None:
        """Update rows as a merge does: deletion vectors, and a file with the new rows."""
        base = self.table
        target = WriteTarget.of(base.metadata, base.io)
        deletes = []
        begin = 0
        for file in sorted(live_files(base.io, base.metadata), key=lowest_id):
            inside = ids[(ids >= begin) & (ids < begin + file.record_count)] - begin
            if len(inside):
                deletes.append((file, BitMap(inside.tolist())))
            begin += file.record_count
        vectors = write_deletes_by_position(target, True, uuid.uuid4().hex, deletes)
        writer = DataFileWriter(target, "merge", uuid.uuid4().hex)
        writer.write(orders(ids, more=1).to_batches())
        added = (AddedFiles(tuple(writer.close()), tuple(vectors.values())),)
        change = Change(Operation.OVERWRITE, added)
        Committer(self.tables.rig.lake, ("s", self.name), change, base).commit()

    def diff(self) -> RowDifference:
        versions = find_versions(self.tables.rig.lake, ("s", self.name), str(self.snapshots[0]))
        rows = compare_rows(compare_metadata(*versions), ["id"]).rows
        if rows is None or (rows.added, rows.removed, rows.changed) != (0, 0, self.changed):
            raise BenchmarkError(f"The difference is wrong: {rows}")
        return rows

    @property
    def snapshots(self) -> tuple[int, int]:
        """The versions that are compared: after the last base file, and now."""
        numbers = [snapshot["snapshot-id"] for snapshot in self.table.metadata["snapshots"]]
        return numbers[DATA_FILES - 1], numbers[-1]

    def ours(self) -> float:
        begin = time.perf_counter()
        self.diff()
        return time.perf_counter() - begin

    def join(self) -> float:
        before, after = (f"s.{self.name} version as of {n}" for n in self.snapshots)
        differs = " or ".join(f"a.{name} is distinct from b.{name}" for name in VALUES)
        sql = (
            f"select count(*) as n from {before} a full outer join {after} b on a.id <=> b.id "
            f"where a.id is null or b.id is null or {differs}"
        )
        begin = time.perf_counter()
        if self.tables.rig.session.rows(sql)["n"][0].as_py() != self.changed:
            raise BenchmarkError("Spark's join gave another difference")
        return time.perf_counter() - begin

    def scan(self) -> float:
        sums = "count(id), sum(amount), max(state), max(note)"
        begin = time.perf_counter()
        for number in self.snapshots:
            sql = f"select {sums} from s.{self.name} version as of {number}"
            self.tables.rig.session.rows(sql)
        return time.perf_counter() - begin


def orders(ids: np.ndarray, more: float = 0) -> pa.Table:
    notes = np.char.add("order ", ids.astype(str))
    return pa.table(
        {"id": ids, "amount": ids * 0.5 + more, "state": STATES[ids % 3], "note": notes}
    )


def lowest_id(file: DataFile) -> int:
    return int.from_bytes(file.lower_bounds[1], "little", signed=True)


def merged(bench: Bench, scattered: bool) -> list[Result]:
    """Compare after a merge of 1 % of the rows, with a full outer join."""
    case = Case(bench)
    try:
        random = np.random.default_rng(3)
        ids = random.choice(case.rows, case.changed, replace=False) if scattered else None
        case.merge(np.arange(case.changed) if ids is None else np.sort(ids))
        size = sum(f.file_size_in_bytes for f in live_files(case.table.io, case.table.metadata))
        read = case.diff().bytes_read
        kind = "scattered" if scattered else "clustered"
        note = (
            f"{case.rows:,} rows in {DATA_FILES} data files, 1 % of them updated, {kind}, with "
            f"deletion vectors. Read: {read / size:.1%} of the table's bytes."
        )
        return [_beside(case, bench, f"diff_merge_{kind}", JOIN, case.join, 5.0, note)]
    finally:
        case.tables.rig.close()


def rebuilt(bench: Bench) -> list[Result]:
    """Compare after the table was built again, in another order, with scans and a join."""
    case = Case(bench)
    try:
        random = np.random.default_rng(3)
        ids = random.permutation(case.rows)
        more = np.isin(ids, random.choice(case.rows, case.changed, replace=False)).astype(float)
        rows = orders(ids)
        amount = pa.array(np.asarray(rows["amount"]) + more)
        case.ingest(rows.set_column(1, "amount", amount), Mode.REPLACE)
        note = f"{case.rows:,} rows built again in another order, 1 % of them with another value."
        return [
            _beside(case, bench, "diff_rebuilt", SCAN, case.scan, 0.5, note),
            _beside(case, bench, "diff_rebuilt_join", JOIN, case.join, 1.0, note),
        ]
    finally:
        case.tables.rig.close()


def _beside(
    case: Case, bench: Bench, name: str, peer: str, measure: Measure, aim: float, note: str
) -> Result:
    measures: dict[str, Measure] = {"ours": case.ours, "peer": measure}
    for each in measures.values():
        each()
    seconds = alternate(measures, bench.runs(5))
    return Result.of(name, peer, seconds["ours"], seconds["peer"], aim, note)


clustered, scattered = partial(merged, scattered=False), partial(merged, scattered=True)
