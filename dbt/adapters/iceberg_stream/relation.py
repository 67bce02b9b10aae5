from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

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
    """A table or view, named by catalog, namespace and identifier.

    Attributes:
        actual_identifier: returns under which identifier a relation is read and written, from its
            namespace and identifier; None if that is always its own.
    """

    quote_policy: Policy = field(default_factory=lambda: IcebergStreamQuotePolicy())
    quote_character: str = "`"
    renameable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    replaceable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    require_alias: bool = False
    actual_identifier: ClassVar[Callable[[str, str], str] | None] = None

    def quoted(self, identifier: str) -> str:
        return quote(identifier)

    def _render_iterator(self) -> Iterator[tuple[ComponentName | None, str | None]]:
        """Yield the parts of the name; temporary views have neither a schema nor a catalog."""
        parts = list(super()._render_iterator())
        if dict(parts).get(ComponentName.Schema) is None:
            parts = [part for part in parts if part[0] != ComponentName.Database]
        for component, text in parts:
            if component == ComponentName.Identifier and text is not None and self.schema:
                identifier = table_name(self)[1]
                quoted = self.quote_policy.get_part(component)
                yield component, self.quoted(identifier) if quoted else identifier
            else:
                yield component, text


def staging_relation(
    actual_identifier: Callable[[str, str], str],
) -> type[IcebergStreamRelation]:
    """Return a class of relations that a run may have staged under other identifiers.

    Args:
        actual_identifier: see `IcebergStreamRelation`.
    """
    attributes = {"actual_identifier": staticmethod(actual_identifier)}
    return type("StagingRelation", (IcebergStreamRelation,), attributes)


def table_name(relation: BaseRelation) -> tuple[str, str]:
    """Return where a relation is read and written: namespace and name, without the catalog.

    Args:
        relation: a table or view.
    """
    namespace, identifier = published_name(relation)
    actual_identifier = getattr(relation, "actual_identifier", None)
    return namespace, actual_identifier(namespace, identifier) if actual_identifier else identifier


def published_relation(relation: BaseRelation) -> IcebergStreamRelation:
    """Return the published version of a relation, also if this run has staged another one.

    Args:
        relation: a table or view.
    """
    namespace, identifier = published_name(relation)
    return IcebergStreamRelation.create(
        database=relation.database, schema=namespace, identifier=identifier, type=relation.type
    )


def published_name(relation: BaseRelation) -> tuple[str, str]:
    """Return the namespace and name of a relation, also if this run has staged it.

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
