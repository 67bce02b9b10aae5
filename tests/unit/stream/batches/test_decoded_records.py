"""Records that no Parquet file takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.batches.decoded_records import DecodedRecords
from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback


@pytest.mark.parametrize("kind", [pa.struct([]), pa.list_(pa.struct([]))])
def test_spark_reads_structs_without_fields(kind: pa.DataType) -> None:
    rows = pa.record_batch({"id": [1], "more": pa.array([None], kind)})
    source: Any = SimpleNamespace(arrow_rows=lambda *_: iter([rows]))
    session: Any = None
    with DecodedRecords() as records, pytest.raises(ArrowFallback):
        records.read(session, source, None, {"0": 1})
