"""A dbt merge: by rewriting files where that is possible, else left to Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import NotByRewriting
from dbt.adapters.iceberg_stream.tables.merge.plan import MOST_SOURCE_ROWS, MergePlan, why_spark
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge, Runner, in_threads
from dbt.adapters.iceberg_stream.tables.merge.rows import Deletes, Source


class DuplicateKeys(Exception):
    """Two rows of a source have the same keys."""


@dataclass(frozen=True)
class MergeResult:
    """What was done by rewriting; `outcome` is None where nothing changed. Or why it is Spark's."""

    outcome: Outcome | None = None
    spark_because: str | None = None


def merge(
    catalog: IcebergCatalog,
    name: Name,
    plan: MergePlan,
    options: Mapping[str, Any],
    stream: Callable[[], Iterator[Any]],
    write_id: str,
    stamps: dict[str, str],
    runner: Runner = in_threads,
) -> MergeResult:
    """Merge the rows of a stream (its schema first, then batches) into a table.

    Raises:
        DuplicateKeys: the source has a key twice; nothing was written.
        ChangedMeanwhile: others were faster each time; nothing was written.
        CatalogError: the catalog refuses; nothing was written.
    """
    base = catalog.load(name, history=False)
    if base is None:
        return MergeResult(spark_because="there is no such table")
    refuses = partial(why_spark, plan, options)
    if because := refuses(base.metadata):
        return MergeResult(spark_because=because)
    try:
        target = WriteTarget.of(base.metadata, base.io)
        rows = _source_rows(stream(), _read_of_source(plan, target.file_schema))
    except ColumnError as error:
        return MergeResult(spark_because=str(error))
    if rows is None:
        return MergeResult(spark_because=f"the source has over {MOST_SOURCE_ROWS:,} rows")
    source = Source(rows, plan.keys)
    if source.twice():
        raise DuplicateKeys
    if not rows.num_rows and plan.deletes is not Deletes.UNMATCHED:
        return MergeResult()
    try:
        done = RewriteMerge(catalog, name, source, plan, refuses, write_id, stamps, runner).run(
            base
        )
    except (NotByRewriting, ColumnError) as error:
        return MergeResult(spark_because=str(error))
    return MergeResult(read_outcome(done.committed.snapshot) if done.committed else None)


def _read_of_source(plan: MergePlan, schema: pa.Schema) -> pa.Schema:
    """The columns that the source must have."""
    if plan.inserts:
        return schema
    return pa.schema([field for field in schema if field.name in {*plan.keys, *plan.updates}])


def _source_rows(stream: Iterator[Any], schema: pa.Schema) -> pa.Table | None:
    """The source's rows as the table's files hold them; None if they are too many."""
    found: Sequence[str] = next(stream).names
    # Spark's names are the same in any case.
    names = {name.lower(): name for name in schema.names}
    if lacking := [name for low, name in names.items() if low not in map(str.lower, found)]:
        raise ColumnError(lacking[0], "is not among the model's")
    batches: list[pa.RecordBatch] = []
    count = 0
    for batch in stream:
        count += batch.num_rows
        if count > MOST_SOURCE_ROWS:
            return None
        known = [i for i, name in enumerate(found) if name.lower() in names]
        renamed = pa.RecordBatch.from_arrays(
            [batch.column(i) for i in known], [names[found[i].lower()] for i in known]
        )
        batches.append(conform(renamed, schema))
    return pa.Table.from_batches(batches, schema)
