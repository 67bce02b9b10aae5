"""A dbt merge: rewrites files if possible, otherwise leaves the merge to Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, read_outcome
from dbt.adapters.iceberg_stream.tables.commit.read_check import ReadCheck
from dbt.adapters.iceberg_stream.tables.files.casting import ColumnError, conform
from dbt.adapters.iceberg_stream.tables.files.reader import NotByRewriting, no_rows
from dbt.adapters.iceberg_stream.tables.files.target import WriteTarget
from dbt.adapters.iceberg_stream.tables.merge.actions import Deletes
from dbt.adapters.iceberg_stream.tables.merge.file_rewrite import OVERFLOW
from dbt.adapters.iceberg_stream.tables.merge.located import INSERTS, MAY_UPDATE, Locate
from dbt.adapters.iceberg_stream.tables.merge.plan import MOST_SOURCE_ROWS, MergePlan, why_spark
from dbt.adapters.iceberg_stream.tables.merge.rewrite import RewriteMerge
from dbt.adapters.iceberg_stream.tables.merge.rows import Source
from dbt.adapters.iceberg_stream.tables.merge.threads import Runner, in_threads

# Columns of a source that are not the table's.
FLAGS = (INSERTS, MAY_UPDATE)


class DuplicateKeys(Exception):
    """Several rows of a source have the same key."""


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge by rewriting files.

    Attributes:
        outcome: rows and files that changed; None if nothing changed.
        spark_because: why Spark must do the merge instead; None if it was done.
    """

    outcome: Outcome | None = None
    spark_because: str | None = None


def merge(
    catalog: IcebergCatalog,
    name: Name,
    plan: MergePlan,
    options: Mapping[str, Any],
    stream: Callable[[], Iterator[Any]],
    write_id: str,
    properties: dict[str, str],
    runner: Runner = in_threads,
    branch: str | None = None,
    read_check: ReadCheck | None = None,
    locate: Locate | None = None,
    most_bytes: int | None = None,
) -> MergeResult:
    """Merge rows into a table by rewriting files.

    Args:
        catalog: the catalog, as the user who writes.
        name: namespace and identifier of the table.
        plan: what the merge does.
        options: the model's config.
        stream: returns the source's rows: their schema first, then batches. Columns INSERTS and
            MAY_UPDATE say which of them may be inserted, and which may update their match.
        write_id: id of the write.
        properties: snapshot properties.
        runner: processes files, in threads or in Spark's tasks.
        branch: the branch that is merged into; None for main.
        locate: locates the table's rows where SQL conditions decide.
        read_check: as for `RewriteMerge`; what was read before this call.
        most_bytes: that the source may have in memory; None for any number.

    Raises:
        DuplicateKeys: several rows of the source have the same key; nothing was written.
        ValidationFailed: the commit conflicted in every attempt; nothing was written.
        CatalogError: the catalog refuses; nothing was written.
    """
    base = catalog.load(name, history=False)
    if base is None:
        return MergeResult(spark_because="the table does not exist")
    refuses = partial(why_spark, plan, options, locate is not None)
    try:
        if because := refuses(base.metadata):
            return MergeResult(spark_because=because)
        schema = _source_schema(plan, WriteTarget.of(base.metadata, base.io).file_schema)
        rows, flags = _source_rows(stream(), schema, most_bytes)
        source = Source(rows, plan.keys)
        if not plan.replaces and source.duplicates():
            raise DuplicateKeys
        if not rows.num_rows and plan.deletes in (Deletes.NONE, Deletes.MATCHED):
            return MergeResult()
        rewrite = RewriteMerge(
            catalog,
            name,
            source,
            plan,
            refuses,
            write_id,
            properties,
            runner,
            branch or MAIN,
            options.get("merge_mode"),
            locate,
            flags.get(INSERTS),
            flags.get(MAY_UPDATE),
            read_check,
        )
        merged = rewrite.run(base)
    except NotByRewriting as error:
        return MergeResult(spark_because=str(error))
    except ColumnError as error:
        return MergeResult(spark_because=error.clause)
    except pa.ArrowInvalid as error:
        if OVERFLOW not in str(error):
            raise
        return MergeResult(spark_because="the new rows have over 2 GiB of text in one column")
    if merged.committed is None:
        return MergeResult()
    return MergeResult(replace(read_outcome(merged.committed.snapshot), branch=branch))


def _source_schema(plan: MergePlan, schema: pa.Schema) -> pa.Schema:
    """Return the columns that the source must have."""
    if plan.inserts:
        return schema
    return pa.schema([field for field in schema if field.name in {*plan.keys, *plan.updates}])


def _source_rows(
    stream: Iterator[Any], schema: pa.Schema, most_bytes: int | None
) -> tuple[pa.Table, dict[str, pa.BooleanArray]]:
    """Read the source's rows with the table's types, and those of FLAGS that it has.

    Raises:
        NotByRewriting: there are too many.
        ColumnError: the columns are not those of the table.
    """
    source: pa.Schema = next(stream)
    # Names in Spark are case-insensitive.
    names = {name.lower(): name for name in schema.names}
    if missing := [name for low, name in names.items() if low not in map(str.lower, source.names)]:
        raise ColumnError(missing[0], "is not among the model's columns")
    positions = [i for i, name in enumerate(source.names) if name.lower() in names]
    for position in positions:
        _require_fields(
            source.field(position).type, schema.field(names[source.names[position].lower()])
        )
    target_names = [names[source.names[i].lower()] for i in positions]
    batches: list[pa.RecordBatch] = []
    flags = {name: [pa.array([], pa.bool_())] for name in FLAGS if name in source.names}
    count = size = 0
    # Types are checked also if there are no rows, as Spark does.
    nothing = pa.record_batch(
        [column.chunk(0) for column in no_rows(source).columns], schema=source
    )
    for batch in itertools.chain([nothing], stream):
        count, size = count + batch.num_rows, size + batch.nbytes
        if count > MOST_SOURCE_ROWS:
            raise NotByRewriting(f"the source has over {MOST_SOURCE_ROWS:,} rows")
        if most_bytes is not None and size > most_bytes:
            raise NotByRewriting(f"the source has over {most_bytes >> 20} MiB")
        for name, parts in flags.items():
            parts.append(batch.column(source.get_field_index(name)))
        columns = [batch.column(i) for i in positions]
        batches.append(conform(pa.RecordBatch.from_arrays(columns, target_names), schema))
    found = {name: pa.concat_arrays(parts) for name, parts in flags.items()}
    return pa.Table.from_batches(batches, schema), found


def _require_fields(actual: pa.DataType, column: pa.Field) -> None:
    """Check that nested types have all fields of the table's column, which would become null."""
    if lacked := _lacked_field(actual, column.type):
        raise ColumnError(column.name, f"lacks the field {lacked}")


def _lacked_field(actual: pa.DataType, expected: pa.DataType) -> str | None:
    """Return the name of a field that only the second type has; None if there is none."""
    if actual.id != expected.id or not pa.types.is_nested(expected):
        return None
    if not pa.types.is_struct(expected):
        pairs = zip(_fields(actual), _fields(expected), strict=True)
        return next((name for a, e in pairs if (name := _lacked_field(a.type, e.type))), None)
    own = {field.name.lower(): field.type for field in _fields(actual)}
    for field in _fields(expected):
        if field.name.lower() not in own:
            return field.name
        if name := _lacked_field(own[field.name.lower()], field.type):
            return f"{field.name}.{name}"
    return None


def _fields(nested: pa.DataType) -> list[pa.Field]:
    return [nested.field(number) for number in range(nested.num_fields)]
