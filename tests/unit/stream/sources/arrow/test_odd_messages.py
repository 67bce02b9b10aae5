"""A message is decoded to the same row, or left to Spark, alone and in any batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.arrow.debezium import decode_debezium
from dbt.adapters.iceberg_stream.stream.sources.arrow.json import decode_messages
from dbt.adapters.iceberg_stream.stream.sources.arrow.json_types import json_arrow_schema
from tests.unit.stream.sources.formats.avro_rows import numbered
from tests.unit.stream.sources.formats.odd_messages import COLUMNS, odd_record

COUNT, BATCHES = 600, 300
FRAMES = {"json": "{}", "debezium": '{{"op": "c", "after": {}}}'}


def decoded(name: str, values: Sequence[bytes]) -> list[str] | None:
    """The rows; None if they are left to Spark."""
    schema = json_arrow_schema(COLUMNS)
    assert schema is not None
    batch = pa.record_batch({"value": pa.array(values), "offset": pa.array(range(len(values)))})
    columns = {name: name for name in schema.names}
    batches: Iterator[pa.RecordBatch]
    if name == "json":
        batches = decode_messages([batch], schema, columns, ["id"])
    else:
        batches = decode_debezium([batch], schema, columns, ["id"])
    try:
        return numbered(pa.Table.from_batches(batches).select(schema.names))
    except ArrowFallback:
        return None


@pytest.mark.parametrize("name", FRAMES)
def test_random_messages(name: str) -> None:
    chance = random.Random(name)
    values = [FRAMES[name].format(odd_record(chance)).encode() for _ in range(COUNT)]
    alone = [decoded(name, [value]) for value in values]
    own = [place for place, rows in enumerate(alone) if rows is not None]
    assert COUNT / 10 < len(own) < COUNT * 0.9
    count = 0
    for _ in range(BATCHES):
        places = chance.sample(own, chance.randint(1, 5))
        if chance.random() < 0.5:
            places.insert(0, chance.randrange(COUNT))
        parts = [alone[place] for place in places]
        expected = None if None in parts else [row for rows in parts if rows for row in rows]
        together = decoded(name, [values[place] for place in places])
        # A check of a whole batch may leave more to Spark, and never less.
        assert together in (None, expected)
        count += together is not None
    assert count > BATCHES / 3
