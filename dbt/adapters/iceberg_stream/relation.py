from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dbt.adapters.base.relation import BaseRelation
from dbt.adapters.contracts.relation import ComponentName, Policy, RelationType
from jinja2 import pass_context
from jinja2.runtime import Context

from dbt.adapters.iceberg_stream.sql.quoting import quote

ActualIdentifier = Callable[[str | None, str, str], str]
UNQUOTED = {"database": False, "schema": False, "identifier": False}


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
            catalog, namespace and identifier; None if that is always its own.
        as_of: SQL literal of the version in which queries read it; None for the current one.
    """

    quote_policy: Policy = field(default_factory=lambda: IcebergStreamQuotePolicy())
    quote_character: str = "`"
    renameable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    replaceable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    require_alias: bool = False
    as_of: str | None = None
    actual_identifier: ClassVar[ActualIdentifier | None] = None

    def quoted(self, identifier: str) -> str:
        return quote(identifier)

    @pass_context
    def at(self, context: Context, version: Any = None, **options: Any) -> IcebergStreamRelation:
        """Return the relation in an earlier version, for queries in a model, test or macro.

        Args:
            context: Jinja's, which passes it by itself.
            version: a snapshot id, tag, branch or time; None for the current version.
            options: instead of `version`: `tag`, `branch`, `snapshot_id` or `timestamp`.
        """
        versions = {"version": version, **options}
        relation: IcebergStreamRelation = context["adapter"].at_version(
            self, versions, context.get("model")
        )
        return relation

    def render(self) -> str:
        """Return the name in SQL, with the version that queries read."""
        name = super().render()
        if self.as_of is None or not self.include_policy.identifier:
            return name
        return f"{name} version as of {self.as_of}"

    def _render_iterator(self) -> Iterator[tuple[ComponentName | None, str | None]]:
        """Yield the parts of the name; temporary views have neither a schema nor a catalog.

        No catalog keeps functions, so statements call them by one name.
        """
        if self.is_function:
            yield ComponentName.Identifier, self.quoted(f"{self.schema}.{self.identifier}")
            return
        parts = list(super()._render_iterator())
        if dict(parts).get(ComponentName.Schema) is None:
            parts = [part for part in parts if part[0] != ComponentName.Database]
        for component, text in parts:
            if component == ComponentName.Identifier and text is not None and self.schema:
                identifier = table_name(self)[1]
                is_staged = identifier != self.identifier
                quoted = self.quote_policy.get_part(component) or is_staged
                yield component, self.quoted(identifier) if quoted else identifier
            else:
                yield component, text


def staging_relation(
    actual_identifier: ActualIdentifier,
) -> type[IcebergStreamRelation]:
    """Return a class of relations that a run may have staged under other identifiers.

    Args:
        actual_identifier: see `IcebergStreamRelation`.
    """

    class StagingRelation(IcebergStreamRelation):
        @classmethod
        def create_from(cls, quoting: Any, relation_config: Any, **options: Any) -> Any:
            """Return a node's relation; the published one for dbt's lines about a node."""
            # Only those lines show all parts without quotes.
            display = options.get("quote_policy") == UNQUOTED != quoting.quoting
            create = IcebergStreamRelation.create_from if display else super().create_from
            return create(quoting, relation_config, **options)

    StagingRelation.actual_identifier = staticmethod(actual_identifier)
    return StagingRelation


def table_name(relation: BaseRelation) -> tuple[str, str]:
    """Return where a relation is read and written: namespace and name, without the catalog.

    Args:
        relation: a table or view.
    """
    namespace, identifier = published_name(relation)
    if (actual_identifier := getattr(relation, "actual_identifier", None)) is None:
        return namespace, identifier
    return namespace, actual_identifier(relation.database, namespace, identifier)


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
