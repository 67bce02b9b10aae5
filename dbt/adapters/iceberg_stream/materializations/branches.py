"""`write_branch`: models that write to a branch of their table (spec, "Snapshot References")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import available
from dbt.adapters.base.meta import AdapterMeta
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.relation import (
    BUILT_AS_TABLES,
    POINTER,
    WRITE_BRANCH,
    IcebergStreamRelation,
    configured_branch,
    published_name,
    table_name,
)
from dbt.adapters.iceberg_stream.sql.stored_types import stored_type

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs

BRANCH, TAG = "branch", "tag"
# What Jinja makes of a variable that is none.
NONE_AS_TEXT = "None"


def branch_errors(model: Mapping[str, Any]) -> list[str]:
    """Return the errors of `write_branch` that a model's config shows.

    Args:
        model: the model's node in dbt's graph.
    """
    config = model["config"]
    value = config.get(WRITE_BRANCH)
    if value is None or str(model["unique_id"]).endswith(POINTER):
        return []
    if value == NONE_AS_TEXT:
        return [
            f"`{WRITE_BRANCH}` is the text 'None', which Jinja makes of none. Give the variable an "
            "empty text as its default: `\"{{ var('branch', '') }}\"`"
        ]
    # Iceberg reads a name of digits as the id of a snapshot.
    if not isinstance(value, str) or value.isdecimal() or value != value.strip():
        return [must_be(WRITE_BRANCH, value, "the name of a branch that is no number, or null")]
    materialized = config.get("materialized")
    if configured_branch(config) is None or materialized in BUILT_AS_TABLES:
        return []
    if materialized == "stream":
        return [f"`{WRITE_BRANCH}` cannot be used with `stream` models: set it to null there"]
    return [
        f"`{WRITE_BRANCH}` cannot be used with `materialized: {materialized}`, which has no "
        "branches: set it to null there"
    ]


class BranchHooks(metaclass=AdapterMeta):
    """The part of the adapter that knows the branches of tables."""

    Relation: type[IcebergStreamRelation]

    if TYPE_CHECKING:

        @property
        def catalogs(self) -> Catalogs:
            """The profile's catalogs."""

    def has_branch(self, relation: IcebergStreamRelation) -> bool:
        """Return whether a relation's table has the relation's branch.

        Args:
            relation: a relation on a branch.
        """
        return self._reference_type(relation) == BRANCH

    def _reference_type(self, relation: IcebergStreamRelation) -> str | None:
        """Return what the name of a relation's branch is in its table; None if it is free."""
        catalog = self.catalogs.get(relation.database)
        refs = (catalog.metadata(table_name(relation)) or {}).get("refs") or {}
        reference = refs.get(relation.branch)
        return None if reference is None else str(reference["type"]).lower()

    @available.parse(lambda *a, **k: False)
    def needs_branch(self, relation: IcebergStreamRelation, model: Mapping[str, Any]) -> bool:
        """Return whether the branch of a model's existing table has to be created.

        Raises:
            CompilationError: the table has a tag of this name.
        """
        kind = self._reference_type(relation)
        if kind == TAG:
            raise CompilationError(
                f"`{WRITE_BRANCH}` of {model['unique_id']}: {_name(relation)} has a tag "
                f"`{relation.branch}`. Give the branch another name."
            )
        return kind is None

    @available.parse_none
    def check_columns_of_branch(
        self, relation: IcebergStreamRelation, model: Mapping[str, Any], columns: Iterable[Any]
    ) -> None:
        """Check that a model returns the columns of its table, which all branches share.

        Args:
            relation: the model's relation, on a branch.
            model: the model's node in dbt's graph.
            columns: those that the model returns.

        Raises:
            CompilationError: a column is new, missing or has another type.
        """
        catalog = self.catalogs.get(relation.database)
        before = {c.name.lower(): c.type for c in catalog.columns(table_name(relation))}
        after = {column.name.lower(): stored_type(str(column.data_type)) for column in columns}
        changes = [
            *(f"`{name}` is new" for name in after if name not in before),
            *(f"`{name}` is missing" for name in before if name not in after),
            *(
                f"`{name}` is {kind} instead of {before[name]}"
                for name, kind in after.items()
                if before.get(name, kind).lower() != kind.lower()
            ),
        ]
        if changes:
            raise CompilationError(_other_columns(relation, model, ", ".join(changes)))

    @available.parse_none
    def refuse_on_branch(
        self, relation: IcebergStreamRelation, model: Mapping[str, Any], change: str
    ) -> None:
        """Refuse a change of the columns of a table by a model that writes to a branch.

        Args:
            relation: the model's relation.
            model: the model's node in dbt's graph.
            change: what would change.

        Raises:
            CompilationError: the relation is on a branch.
        """
        if getattr(relation, "branch", None) is not None:
            raise CompilationError(_other_columns(relation, model, change))

    @available.parse_none
    def check_view(self, model: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Check that a view reads no model on a branch, which it would show to everybody.

        Args:
            model: the view's node in dbt's graph.
            nodes: the nodes of dbt's graph.

        Raises:
            CompilationError: the view reads a branch.
        """
        for node in _read_by(model, nodes):
            branch = configured_branch(node["config"])
            if branch is None or node["config"].get("materialized") not in BUILT_AS_TABLES:
                continue
            relation = self.Relation.create(
                database=node["database"],
                schema=node["schema"],
                identifier=node["alias"],
                branch=branch,
            )
            if self.has_branch(relation):
                raise CompilationError(
                    f"{model['unique_id']} is a view of {_name(relation)}, which "
                    f"{node['unique_id']} writes to the branch `{branch}` (`{WRITE_BRANCH}`). A "
                    "view has no branches, so all its readers would see these rows. Materialize it "
                    "as ephemeral or as a table, or exclude it from runs that write to a branch."
                )


def _read_by(
    node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Iterate over the nodes that a node reads, also through ephemeral models."""
    for unique_id in (node.get("depends_on") or {}).get("nodes") or []:
        if (parent := nodes.get(unique_id)) is None:
            continue
        if parent["config"].get("materialized") == "ephemeral":
            yield from _read_by(parent, nodes)
        else:
            yield parent


def _other_columns(relation: IcebergStreamRelation, model: Mapping[str, Any], change: str) -> str:
    return (
        f"{model['unique_id']} writes to the branch `{relation.branch}` of {_name(relation)} "
        f"(`{WRITE_BRANCH}`), and its columns are not those of the table: {change}. All branches "
        f"of a table have the same columns, so readers of {MAIN} would see the change. Change the "
        "columns in a run without the config first, or alter the table."
    )


def _name(relation: IcebergStreamRelation) -> str:
    return ".".join(published_name(relation))
