from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import ismethod
from typing import Any, ClassVar
from weakref import WeakMethod

from dbt.adapters.base.relation import BaseRelation
from dbt.adapters.contracts.relation import ComponentName, Policy, RelationType
from dbt_common.exceptions import DbtInternalError
from jinja2 import pass_context
from jinja2.runtime import Context

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN
from dbt.adapters.iceberg_stream.sql.branches import BRANCH_PREFIX
from dbt.adapters.iceberg_stream.sql.quoting import literal, quote

ActualIdentifier = Callable[[str | None, str, str], str]
WRITE_BRANCH = "write_branch"
# How dbt 1.12 ends the id of the view of a model's latest version, which has the model's config.
POINTER = "__latest_version_pointer"
# Their tables have branches.
BUILT_AS_TABLES = ("table", "incremental", "seed", "snapshot")
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
        branch: the branch that statements read and write; None for main.
        is_read: whether the relation is that of a `ref`, which queries only read.
        temporary_view: what queries read in its place; None for a relation of a catalog.
        has_branch: returns whether a relation's table has the branch.
        external_view: returns the temporary view of a source that is no table of a catalog.
    """

    quote_policy: Policy = field(default_factory=lambda: IcebergStreamQuotePolicy())
    quote_character: str = "`"
    renameable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    replaceable_relations: frozenset = frozenset({RelationType.Table, RelationType.View})
    require_alias: bool = False
    as_of: str | None = None
    branch: str | None = None
    is_read: bool = False
    temporary_view: str | None = None
    actual_identifier: ClassVar[ActualIdentifier | None] = None
    has_branch: ClassVar[Callable[[IcebergStreamRelation], bool] | None] = None
    external_view: ClassVar[Callable[[Any], str | None] | None] = None

    @classmethod
    def create_from(cls, quoting: Any, relation_config: Any, **options: Any) -> Any:
        """Return a node's relation, on the branch of its config `write_branch`.

        A source with the property `external` is a temporary view.

        A `ref` reads main as long as its table does not have the branch: the branch would begin
        there.
        """
        relation = super().create_from(quoting, relation_config, **options)
        view = cls.external_view(relation_config) if cls.external_view is not None else None
        if view is not None:
            external = relation.replace(temporary_view=view)
            # dbt's documentation lists the source under its own name.
            return external.as_read() if "limit" in options else external
        if (branch := branch_of(relation_config)) is None:
            return relation
        on_branch = relation.replace(branch=branch)
        # Only a `ref` in a node that runs has this option.
        if "limit" not in options:
            return on_branch
        if cls.has_branch is None or not cls.has_branch(on_branch):
            return relation
        return on_branch.replace(is_read=True)

    def as_read(self) -> IcebergStreamRelation:
        """Return the relation that queries read: a temporary view, or itself."""
        if self.temporary_view is None:
            return self
        path = {"database": None, "schema": None, "identifier": self.temporary_view}
        view: IcebergStreamRelation = self.replace_path(**path)
        return view.replace(type=RelationType.View)

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
        """Return the name in SQL, with the version that queries read or the branch."""
        name = super().render()
        if not self.include_policy.identifier or not self.schema:
            return name
        if self.as_of is not None:
            return f"{name} version as of {self.as_of}"
        if self.branch is None:
            return name
        branch = f"{BRANCH_PREFIX}{self.branch}"
        return f"{name}.{self.quoted(branch) if self.quote_policy.identifier else branch}"

    def __str__(self) -> str:
        """Return the name in SQL; a `ref` keeps the table's name as that of its columns."""
        if self.branch is None or not self.is_read or self.as_of is not None:
            return super().__str__()
        if self.limit is not None or self.event_time_filter is not None:
            return super().__str__()
        return str(self.replace(as_of=literal(self.branch)))

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


def branch_of(node: Any) -> str | None:
    """Return the branch that a node writes; None for main, and for nodes without a table.

    Args:
        node: a node of dbt's graph.
    """
    config = getattr(node, "config", None)
    if config is None or getattr(node, "resource_type", None) not in ("model", "seed", "snapshot"):
        return None
    if str(getattr(node, "unique_id", "")).endswith(POINTER):
        return None
    return configured_branch(config) if config.get("materialized") in BUILT_AS_TABLES else None


def configured_branch(config: Mapping[str, Any]) -> str | None:
    """Return the branch of the config `write_branch`; None for main.

    Args:
        config: a node's config; a value that is wrong is refused before the node runs.
    """
    branch = config.get(WRITE_BRANCH)
    return branch if isinstance(branch, str) and branch not in ("", MAIN) else None


def project_relation(
    has_branch: Callable[[IcebergStreamRelation], bool],
    external_view: Callable[[Any], str | None],
) -> type[IcebergStreamRelation]:
    """Return a class of relations that knows the branches of tables and the external sources.

    Args:
        has_branch: see `IcebergStreamRelation`.
        external_view: see `IcebergStreamRelation`.
    """

    class ProjectRelation(IcebergStreamRelation):
        pass

    ProjectRelation.has_branch = staticmethod(_weakly(has_branch))
    ProjectRelation.external_view = staticmethod(_weakly(external_view))
    return ProjectRelation


def staging_relation(
    actual_identifier: ActualIdentifier,
    base: type[IcebergStreamRelation] = IcebergStreamRelation,
) -> type[IcebergStreamRelation]:
    """Return a class of relations that a run may have staged under other identifiers.

    Args:
        actual_identifier: see `IcebergStreamRelation`.
        base: the class of relations that are not staged.
    """

    class StagingRelation(base):  # type: ignore[valid-type, misc]
        @classmethod
        def create_from(cls, quoting: Any, relation_config: Any, **options: Any) -> Any:
            """Return a node's relation; the published one for dbt's lines about a node."""
            # Only those lines show all parts without quotes.
            display = options.get("quote_policy") == UNQUOTED != quoting.quoting
            create = IcebergStreamRelation.create_from if display else super().create_from
            return create(quoting, relation_config, **options)

    StagingRelation.actual_identifier = staticmethod(_weakly(actual_identifier))
    return StagingRelation


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method of an adapter without keeping the adapter alive.

    mashumaro keeps each class of relations for ever, and a program may run dbt many times.

    Args:
        method: the method; a plain function stays as it is.
    """
    if not ismethod(method):
        return method
    reference = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = reference()
        if alive is None:
            raise DbtInternalError("A relation was used after its adapter had ended.")
        return alive(*arguments)

    return call


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
