from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dbt.adapters.base.relation import BaseRelation
from dbt.adapters.contracts.relation import ComponentName, Policy, RelationType
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.sql.quoting import quote


@dataclass
class IcebergStreamQuotePolicy(Policy):
    database: bool = True
    schema: bool = True
    identifier: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class IcebergStreamRelation(BaseRelation):
    """A table or view, named by catalog, namespace and identifier."""

    quote_policy: Policy = field(default_factory=lambda: IcebergStreamQuotePolicy())
    quote_character: str = "`"
    renameable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    replaceable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    require_alias: bool = False

    def quoted(self, identifier: str) -> str:
        return quote(identifier)

    def _render_iterator(self) -> Iterator[tuple[ComponentName | None, str | None]]:
        """Yield the parts of the name; temporary views have neither a schema nor a catalog."""
        parts = list(super()._render_iterator())
        if dict(parts).get(ComponentName.Schema) is None:
            parts = [part for part in parts if part[0] != ComponentName.Database]
        yield from parts


def table_name(relation: BaseRelation) -> tuple[str, str]:
    """Return the Iceberg identifier of a relation: namespace and name, without the catalog.

    Args:
        relation: a table or view.
    """
    return str(relation.schema), str(relation.identifier)


def check_database(relation: BaseRelation, catalog: str) -> None:
    """Check that a relation is in the profile's catalog.

    Args:
        relation: a table, view or namespace.
        catalog: name of the profile's catalog.

    Raises:
        DbtRuntimeError: it names another catalog.
    """
    if relation.database and relation.database.lower() != catalog.lower():
        raise DbtRuntimeError(
            f"{relation} names the catalog `{relation.database}`, but this profile has only "
            f"`{catalog}`. Remove the `database` config, or set it in the profile."
        )
