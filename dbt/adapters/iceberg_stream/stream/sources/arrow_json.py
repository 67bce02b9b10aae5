"""JSON messages, decoded by PyArrow where the query takes their columns as they are.

It takes a third of what Spark's `from_json` does. What PyArrow and Spark could see differently is
left to Spark, the whole batch with it: it knows what is a bad record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from dbt.adapters.iceberg_stream.stream.errors import ArrowFallback
from dbt.adapters.iceberg_stream.stream.sources.source import MAJOR, MINOR

MESSAGES_VIEW = "__stream_messages"
# Messages without value are none, or deletes, which Spark knows.
MESSAGES_SQL = f"select value, offset from {MESSAGES_VIEW} where value is not null"
TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}
# What comes after an object that is no part of another one.
MORE = r"\}\s*[^,}\]\s]"


def decode_messages(
    messages: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    columns: Mapping[str, str],
    required: Sequence[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Columns of records of such a schema, and where they stand.

    Required ones must be there: whether one is null or absent is not known here.

    Raises:
        ArrowFallback: a message may be bad, or Spark may see it differently.
    """
    for batch in messages:
        if not batch.num_rows:
            continue
        records = _decode(batch["value"], schema)
        if any(records[name].null_count for name in required):
            raise ArrowFallback
        found = {name: records[column] for name, column in columns.items()}
        found[MAJOR] = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        found[MINOR] = batch["offset"]
        yield from pa.table(found).combine_chunks().to_batches()


def _decode(values: pa.Array, schema: pa.Schema) -> pa.Table:
    try:
        texts = values.cast(pa.string())
        if not _are_objects(texts):
            raise ArrowFallback
        # A line for each. An object that does not end runs into the next, and is an error.
        lines = pc.binary_join_element_wise(texts, "", "\n").buffers()[2]
        records = pj.read_json(
            pa.BufferReader(lines),
            read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pj.ParseOptions(schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException as error:
        raise ArrowFallback from error
    if records.num_rows != len(values):
        raise ArrowFallback
    return records


def _are_objects(texts: pa.StringArray) -> bool:
    """Whether each text is one object, if it is JSON.

    PyArrow does not mind several in a text, and does not survive a lone `null`.
    """
    framed = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    more = pc.match_substring_regex(texts, MORE)
    return bool(pc.all(framed).as_py() and not pc.any(more).as_py())


def json_arrow_schema(types: Mapping[str, str]) -> pa.Schema | None:
    """The schema of records whose columns have such types of Spark's; None for other types."""
    if not TYPES.keys() >= set(types.values()):
        return None
    return pa.schema([(name, TYPES[kind]) for name, kind in types.items()])
