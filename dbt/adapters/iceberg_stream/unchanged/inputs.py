"""The versions of the tables that a query reads, views looked through."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.builds.names import with_published_names, without_build
from dbt.adapters.iceberg_stream.catalog.metadata import row_schema, same_rows
from dbt.adapters.iceberg_stream.catalog.views import current_version, view_query
from dbt.adapters.iceberg_stream.sql.reads import CURRENT
from dbt.adapters.iceberg_stream.tables.commit.read_set import capture_read_set

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
    from dbt.adapters.iceberg_stream.catalog.metadata import Metadata


# None for a table without a snapshot; a digest where the query names the versions that it reads,
# or reads all of them.
SnapshotId = int | str | None


class UnknownInputs(Exception):
    """A query whose rows may change without a change of its tables. The message says why."""


@dataclass(frozen=True)
class Inputs:
    """What a query reads.

    Attributes:
        tables: by name, the snapshots that are read and a digest of the schema. The first snapshot
            stands for the earlier ones of the same rows, which come after it.
        views: digest of the definitions of the views.
        reads_own: whether the query reads the model's own table, which is not in `tables`.
        reads_staged: whether the query reads relations that this run has staged.
        changes: by name, the version of each relation and when it last changed. They tell a
            table that was changed and rolled back from one that was not.
    """

    tables: Mapping[str, tuple[tuple[SnapshotId, ...], str]]
    views: str
    reads_own: bool = False
    reads_staged: bool = False
    changes: Mapping[QualifiedName, Any] = field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return what a record keeps."""
        tables = {name: [ids[0], schema] for name, (ids, schema) in self.tables.items()}
        return {"tables": tables, "views": self.views}

    def change_since(self, recorded: Mapping[str, Any], with_rows: bool = True) -> str | None:
        """Return what has changed since a record was made; None if nothing has.

        Args:
            recorded: the result of `as_json`.
            with_rows: whether new rows matter, which they do not to a view.
        """
        before: Mapping[str, Any] = recorded["tables"]
        if others := sorted(set(self.tables) ^ set(before)):
            return f"it reads other tables: {', '.join(others)}"
        for name, (ids, schema) in self.tables.items():
            snapshot_before, schema_before = before[name]
            if schema_before != schema:
                return f"{name} has other columns"
            if with_rows and snapshot_before not in ids:
                return f"{name} has other rows"
        return None if self.views == recorded["views"] else "a view that it reads has changed"

    def changed_since(self, before: Inputs, with_rows: bool = True) -> bool:
        """Return whether anything has changed since inputs were captured, even if it is back.

        Args:
            before: the inputs of the same query.
            with_rows: as for `change_since`.
        """
        if not with_rows:
            return self.change_since(before.as_json(), with_rows=False) is not None
        return (self, self.changes) != (before, before.changes)


def capture_inputs(
    catalogs: Catalogs,
    sql: str,
    own: QualifiedName | None,
    build: str | None = None,
    with_history: bool = False,
) -> Inputs:
    """Capture the current versions of what a model's query reads, except the model's own table.

    Args:
        catalogs: the catalogs.
        sql: the query.
        own: the model's table, by its published name; None for a test, which has none.
        build: the build of this run, whose staged relations count as published.
        with_history: whether it reads all versions that the tables had.

    Raises:
        UnknownInputs: the rows depend on more than tables of the catalog.
    """
    from dbt.adapters.iceberg_stream.sql.queries import reads
    from dbt.adapters.iceberg_stream.sql.repeatable import metadata_column, variable_part

    if part := variable_part(sql):
        raise UnknownInputs(f"its rows may change with `{part}`")
    if column := metadata_column(sql):
        raise UnknownInputs(f"its rows may change with `{column}` when its tables are compacted")
    relations: dict[QualifiedName, Metadata] = {}
    read_set = capture_read_set(catalogs, reads(sql), {}, relations)
    if not read_set.is_complete:
        raise UnknownInputs("it reads something that is not a table or view of a catalog")
    if part := next(filter(None, map(variable_part, read_set.definitions)), None):
        raise UnknownInputs(f"the rows of a view that it reads may change with `{part}`")
    if column := next(filter(None, map(metadata_column, read_set.definitions)), None):
        raise UnknownInputs(
            f"the rows of a view that it reads may change with `{column}` when tables are compacted"
        )
    names = {name: name if build is None else without_build(name) for name in relations}
    if len(set(names.values())) < len(names):
        raise UnknownInputs("it reads the published and the staged version of one relation")
    tables: dict[str, tuple[tuple[SnapshotId, ...], str]] = {}
    views, changes = {}, {}
    for name, version in read_set.versions.items():
        metadata, published = relations[name], ".".join(names[name])
        if "versions" in metadata:
            views[published] = _definition(metadata, build)
        elif names[name] != own:
            ids: tuple[SnapshotId, ...] = tuple(same_rows(metadata))
            if with_history:
                ids = (digest((metadata.get("snapshot-log") or [None])[-1]),)
            elif read_set.as_of.get(name, CURRENT) != CURRENT:
                ids = (digest([version.fixed, version.current]),)
            tables[published] = (ids, schema_digest(metadata))
        if names[name] != own:
            changes[name] = version
    published_names = set(names.values())
    is_staged = published_names != set(relations)
    return Inputs(tables, digest(views), own in published_names, is_staged, changes)


def _definition(view: Metadata, build: str | None) -> list[Any]:
    """Return what determines the columns and rows of a view, beside its tables."""
    query, version = view_query(view), current_version(view)
    if build is not None:
        query = with_published_names(query, build)
    context = [version.get(key) for key in ("default-namespace", "default-catalog")]
    return [query, *context, schema_digest(view)]


def schema_digest(metadata: Metadata) -> str:
    """Return a digest of what decides which columns the rows of a table or view have."""
    return digest(row_schema(metadata))


def digest(value: Any) -> str:
    """Return a short digest of a value that JSON can hold."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


NO_INPUTS = Inputs({}, digest({}))
