"""What a table keeps of its last build, in a table property."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import same_rows
from dbt.adapters.iceberg_stream.catalog.views import view_query
from dbt.adapters.iceberg_stream.unchanged.inputs import (
    Inputs,
    digest,
    schema_digest,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
    from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

PROPERTY = "iceberg-stream.last-build"
FULL, INCREMENTAL = "full", "incremental"
NEVER_BUILT = "it was not built with `skip_unchanged` before"


@dataclass(frozen=True)
class BuildRecord:
    """A build of one relation: what it was made from, and what it left.

    Attributes:
        code: digests of the model's code and of what else determines its rows, by what they are
            of, in the words of messages.
        mode: whether the query was that of an increment.
        query: digest of the compiled query.
        inputs: the result of `Inputs.as_json`.
        snapshot_id: the table's snapshot at the end; None for an empty table and for a view.
        built_at: when it was built (ISO 8601, UTC).
        changed_rows: whether the build changed a row of the table.
        schema: digest of the columns at the end.
    """

    code: Mapping[str, str]
    mode: str
    query: str
    inputs: Mapping[str, Any]
    snapshot_id: int | None
    built_at: str
    changed_rows: bool = True
    schema: str | None = None

    def as_text(self) -> str:
        """Return the value of the property."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    def change_to(self, other: BuildRecord, inputs: Inputs, with_rows: bool) -> str | None:
        """Return what has changed since the build, beside its mode and query; None if nothing has.

        Args:
            other: the record that a build would leave now.
            inputs: the current inputs.
            with_rows: see `Inputs.change_since`.
        """
        return change_of_code(self.code, other.code) or inputs.change_since(self.inputs, with_rows)


def change_of_code(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Return which of the digests of a node's code has changed; None if none has.

    Args:
        before: the digests of a record, by what they are of.
        now: the current ones.
    """
    changed = (part for part in (*before, *now) if before.get(part) != now.get(part))
    return next((f"{part} changed" for part in changed), None)


def read_record(metadata: Metadata) -> BuildRecord | None:
    """Return the record in a relation's properties; None if there is none that can be read.

    Args:
        metadata: of a table or view.
    """
    text = (metadata.get("properties") or {}).get(PROPERTY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        return BuildRecord(**{field.name: values[field.name] for field in fields(BuildRecord)})
    except (ValueError, KeyError, TypeError):
        # An earlier or later version of the adapter wrote it.
        return None


def is_as_left(metadata: Metadata, record: BuildRecord) -> bool:
    """Return whether a relation is what its last build left, compactions aside.

    Args:
        metadata: of the table or view.
        record: of its last build.
    """
    if record.schema != schema_digest(metadata):
        return False
    if "versions" in metadata:
        return definition_digest(view_query(metadata)) == record.query
    return record.snapshot_id in same_rows(metadata)


def definition_digest(sql: str) -> str:
    """Return a digest of a query, comments and white space left out.

    Spark leaves out the comments before a view's query.

    Args:
        sql: the query.
    """
    from sqlglot.dialects import Spark
    from sqlglot.errors import TokenError

    try:
        return digest([sql[token.start : token.end + 1] for token in Spark().tokenize(sql)])
    except TokenError:
        return digest(sql.strip())


def write_record(catalog: IcebergCatalog, name: Name, record: BuildRecord) -> None:
    """Keep the record of a build in the properties of its table.

    Another writer's commit at the same moment does not matter: the next run compares the table's
    snapshot with the record's.

    Args:
        catalog: the catalog.
        name: namespace and identifier of the table.
        record: of the build.

    Raises:
        CatalogError: the catalog refuses the change.
    """
    from pyiceberg.table.update import SetPropertiesUpdate

    table = catalog.load(name, history=False)
    if table is None:
        raise CatalogError(f"{'.'.join(name)} does not exist: another writer dropped it")
    text = replace(record, schema=schema_digest(table.metadata)).as_text()
    catalog.commit(table, (), (SetPropertiesUpdate(updates={PROPERTY: text}),))


def write_view_record(catalog: IcebergCatalog, name: Name, record: BuildRecord) -> None:
    """Keep the record of a build in the properties of its view.

    Args:
        catalog: the catalog.
        name: namespace and identifier of the view.
        record: of the build.

    Raises:
        CatalogError: the catalog refuses the change.
    """
    metadata = catalog.metadata(name)
    if metadata is None or "versions" not in metadata:
        raise CatalogError(f"{'.'.join(name)} is not a view any more: another writer replaced it")
    text = replace(record, schema=schema_digest(metadata)).as_text()
    catalog.set_view_properties(name, {PROPERTY: text})
