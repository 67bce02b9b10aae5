"""Records that are decoded for Spark have the values that Spark decodes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.stream.batches.decoded_records import DecodedRecords
from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.arrow.records import RecordDecoder
from dbt.adapters.iceberg_stream.stream.sources.source import (
    BAD,
    REASON,
    SKIPPED,
    WHERE,
    Frontier,
    MessageSource,
    OnSkip,
    Pick,
)
from tests.integration.spark_messages import spark_rows
from tests.unit.stream.sources.formats.avro_rows import (
    AVRO,
    decoder_of,
    encode,
    framed,
    numbered,
    schemas_of,
    topics,
)

UPPER: Frontier = {"0": 1}


class Messages:
    """A source of a few messages in Avro."""

    record_columns = (BAD, REASON, WHERE, SKIPPED)

    def __init__(self, decoder: RecordDecoder, values: Sequence[bytes]) -> None:
        self._decoder = decoder
        self._values = values

    def arrow_rows(
        self, session: Session, lower: Frontier | None, upper: Frontier, pick: Pick, on_skip: OnSkip
    ) -> Iterator[pa.RecordBatch] | None:
        columns = pick(self._decoder.schema)
        assert columns is not None
        batches = [
            pa.record_batch({"value": pa.array([value], pa.binary()), "offset": [place]})
            for place, value in enumerate(self._values)
        ]
        return self._decoder.decode(batches, columns, on_skip)


def rows(spark: Session, decoder: RecordDecoder, values: Sequence[bytes]) -> pa.Table:
    """What Spark reads of messages that were decoded for it."""
    source = cast("MessageSource", Messages(decoder, values))
    with DecodedRecords() as records:
        frame = records.read(spark, source, None, UPPER)
        assert frame is not None
        sql = f"select * except (__stream, {REASON}, {WHERE}) from v order by __stream.minor"
        return spark.rows(sql, v=frame)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_all_types_of_avro(spark: Session, data: st.DataObject) -> None:
    schema, values = data.draw(topics(20))
    messages = [framed(1, encode(schema, value)) for value in values]
    expected = spark_rows(spark, AVRO, schemas_of(schema), messages)
    assert expected[BAD].null_count == len(messages)
    decoded = rows(spark, decoder_of(schema), messages).select(expected.schema.names)
    assert decoded.schema.types == expected.schema.types
    assert numbered(decoded) == numbered(expected)


def test_the_calendar_of_the_session(spark: Session) -> None:
    day: Mapping[str, Any] = {"type": "int", "logicalType": "date"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "day", "type": day}]}
    message = framed(1, encode(schema, {"day": -719162}))
    setting = "spark.sql.parquet.datetimeRebaseModeInRead"
    spark.run(f"set {setting} = LEGACY")
    try:
        decoded = rows(spark, decoder_of(schema), [message])
    finally:
        spark.run(f"reset {setting}")
    assert str(decoded["day"][0]) == "0001-01-01"


def test_a_temporary_folder_that_cannot_be_written(
    spark: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    messages = Messages(decoder_of(schema), [framed(1, encode(schema, {"id": 7}))])
    with DecodedRecords() as records:
        [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
        folder.rmdir()
        with pytest.raises(StreamError, match=f"{folder} does not take .* TMPDIR"):
            records.read(spark, cast("MessageSource", messages), None, UPPER)


def test_nothing_is_left_of_a_batch(
    spark: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    assert rows(spark, decoder_of(schema), [framed(1, encode(schema, {"id": 7}))])["id"][0]
    assert not list(tmp_path.iterdir())
