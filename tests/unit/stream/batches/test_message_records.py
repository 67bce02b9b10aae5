"""Records that this process decodes come to Spark as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbt.adapters.iceberg_stream.stream.batches import spark_rows
from dbt.adapters.iceberg_stream.stream.batches.bad_records import BadRecords, RecordCounts
from dbt.adapters.iceberg_stream.stream.batches.message_records import MessageRecords
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.row_deltas.written import BatchRange
from dbt.adapters.iceberg_stream.stream.sources.source import (
    MAJOR,
    MINOR,
    ROW_DELETED,
    TRUNCATED,
    BadRecord,
    Records,
)

BAD = [BadRecord("offset 5", "{", "is no record"), BadRecord("offset 7", "x" * 300, "is long")]


class Frame:
    """A frame of Spark.

    Attributes:
        rows: its rows.
        columns: what is selected.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.columns = rows, list[str]()

    def selectExpr(self, *columns: str) -> Frame:
        self.columns = list(columns)
        return self


class Spark:
    """A session of Spark.

    Attributes:
        folders: that it has read from.
    """

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.read = self

    def createDataFrame(self, rows: pa.Table, _: Any) -> Frame:
        return Frame(rows)

    def schema(self, _: Any) -> Spark:
        return self

    def option(self, *_: str) -> Spark:
        return self

    def parquet(self, path: str) -> Frame:
        file = Path(path.removeprefix("file:"))
        self.folders.append(file.parent)
        return Frame(pq.read_table(file))


class Source:
    """Some records."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self.parts = parts

    def decode(self, *_: Any) -> Any:
        return iter(self.parts)

    def empty(self, *_: Any) -> Frame:
        return Frame(pa.table({}))


def rows(*ids: int, kind: pa.DataType | None = None, **flags: Any) -> pa.RecordBatch:
    more = pa.array([None] * len(ids), pa.string() if kind is None else kind)
    count = range(len(ids))
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "more": more,
            MAJOR: pa.array([0 for _ in ids], pa.int64()),
            MINOR: pa.array(count, pa.int64()),
            **flags,
        }
    )


def records_of(*parts: Records, limit: int = 5, table: bool = True) -> MessageRecords:
    source: Any = Source(parts)
    session: Any = SimpleNamespace(spark=Spark())
    write = (lambda _: None) if table else None
    return MessageRecords(
        source, session, BatchRange(None, {"0": 1}), BadRecords(write, "dead", limit)
    )


PARTS = (
    Records(rows(1, 2), BAD[:1], 3),
    Records(rows(), [], 1),
    Records(rows(4, 5, **{TRUNCATED: [True, False], ROW_DELETED: [False, True]}), BAD[1:]),
)


@pytest.mark.parametrize(("is_remote", "is_small"), [(False, False), (True, False), (False, True)])
def test_spark_gets_all_rows(
    is_remote: bool, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches of which only some have flags."""
    if not is_small:
        monkeypatch.setattr(spark_rows, "SENT_BYTES", 50)
    records = records_of(*PARTS)
    with records.frame(is_remote) as frame:
        found: Any = frame
        assert found.rows["id"].to_pylist() == [1, 2, 4, 5]
        assert found.rows[TRUNCATED].to_pylist() == [False, False, True, False]
        assert found.rows[ROW_DELETED].to_pylist() == [False, False, False, True]
        assert found.columns[:-1] == ["`id`", "`more`"]
        assert found.columns[-1].endswith(" as __stream")
    assert records.counts == RecordCounts(truncates=1, skipped=4)
    assert records.bad == BAD
    spark: Any = records.session.spark
    assert len(spark.folders) == (0 if is_remote or is_small else 1)
    assert not any(folder.exists() for folder in spark.folders)


def test_a_batch_without_rows() -> None:
    records = records_of(Records(rows(), BAD, 2))
    with records.frame(False) as frame:
        found: Any = frame
        assert not found.columns
    assert (records.counts, records.bad) == (RecordCounts(skipped=2), BAD)


@pytest.mark.parametrize("kind", [pa.struct([]), pa.list_(pa.struct([]))])
def test_structs_without_fields(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Parquet file has them."""
    monkeypatch.setattr(spark_rows, "SENT_BYTES", 0)
    records = records_of(Records(rows(1, kind=kind)))
    with records.frame(False) as frame:
        found: Any = frame
        assert found.rows["more"].type == kind
    spark: Any = records.session.spark
    assert not spark.folders


def test_bad_records_stop_a_stream() -> None:
    with pytest.raises(StreamError, match=r"1 record cannot be read, at offset 5: { \("):
        list(records_of(*PARTS, table=False).rows())
    words = "2 records of this run cannot be read, and `bad_record_limit` allows 1"
    with pytest.raises(StreamError, match=words):
        list(records_of(*PARTS, limit=1).rows())
