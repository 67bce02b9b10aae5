"""dbt's hooks. What takes more than a few lines is in the package that the layer table names."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.context import SpawnContext
from typing import TYPE_CHECKING, Any, cast

from dbt.adapters.__about__ import version as base_version
from dbt.adapters.base import BaseRelation, ConstraintSupport, available
from dbt.adapters.base.relation import AdapterTrackingRelationInfo
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.contracts.relation import RelationType
from dbt.adapters.reference_keys import _make_ref_key
from dbt.adapters.sql import SQLAdapter
from dbt_common.contracts.constraints import ConstraintType
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.builds.names import split_staged
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.branches import BranchHooks
from dbt.adapters.iceberg_stream.materializations.builds import BuildHooks, listen
from dbt.adapters.iceberg_stream.materializations.catalogs import CatalogHooks
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.materializations.functions import FunctionHooks
from dbt.adapters.iceberg_stream.materializations.hooks import MaterializationHooks
from dbt.adapters.iceberg_stream.materializations.model_config import (
    check_model_config,
)
from dbt.adapters.iceberg_stream.materializations.reused_tests import DataTestHooks
from dbt.adapters.iceberg_stream.materializations.strategies import STRATEGIES, strategy_of
from dbt.adapters.iceberg_stream.relation import (
    IcebergStreamRelation,
    project_relation,
    table_name,
)
from dbt.adapters.iceberg_stream.sessions.invalidation import AfterCommit
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.quoting import quote
from dbt.adapters.iceberg_stream.sql.stored_types import stored_type
from dbt.adapters.iceberg_stream.stream.groups import Grouping, Groups
from dbt.adapters.iceberg_stream.summary.changes import Changes
from dbt.adapters.iceberg_stream.summary.listener import BuildSummary
from dbt.adapters.iceberg_stream.summary.row_drop import check_row_drop

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.catalog.catalog import Name
    from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
    from dbt.adapters.iceberg_stream.engines.session import Session
    from dbt.adapters.iceberg_stream.stream.sources.registry import SourceDefinition
    from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome

logger = Logger()

# Commands that will need the engine: it starts while dbt parses the project.
ENGINE_COMMANDS = {"run", "build", "test", "seed", "snapshot", "show", "compile", "retry", "clone"}
ENGINE_COMMANDS |= {"run-operation", "freshness", "generate"}

# A macro of the project, called after each commit.
USER_HOOK = "iceberg_stream__on_write"
# dbt 1.12 asks for it before it reads its form of catalogs.yml; dbt-adapters 1.24.0 lacks it.
CATALOGS_V2 = "CatalogsV2"


class IcebergStreamAdapter(
    BranchHooks,
    BuildHooks,
    CatalogHooks,
    FunctionHooks,
    MaterializationHooks,
    DataTestHooks,
    SQLAdapter,
):
    ConnectionManager = IcebergStreamConnectionManager
    connections: IcebergStreamConnectionManager
    Relation = IcebergStreamRelation
    Column = IcebergStreamColumn

    CONSTRAINT_SUPPORT = {
        ConstraintType.check: ConstraintSupport.ENFORCED,
        ConstraintType.not_null: ConstraintSupport.ENFORCED,
        ConstraintType.unique: ConstraintSupport.NOT_ENFORCED,
        ConstraintType.primary_key: ConstraintSupport.NOT_ENFORCED,
        ConstraintType.foreign_key: ConstraintSupport.NOT_ENFORCED,
    }
    _capabilities = CapabilityDict(
        {
            Capability.SchemaMetadataByRelations: CapabilitySupport(support=Support.Full),
            Capability.TableLastModifiedMetadata: CapabilitySupport(support=Support.Full),
            Capability.TableLastModifiedMetadataBatch: CapabilitySupport(support=Support.Full),
            Capability.GetCatalogForSingleRelation: CapabilitySupport(support=Support.Full),
            Capability.MicrobatchConcurrency: CapabilitySupport(support=Support.Full),
        }
    )
    if hasattr(Capability, CATALOGS_V2):
        _capabilities[Capability(CATALOGS_V2)] = CapabilitySupport(support=Support.Full)

    def __init__(self, config: Any, mp_context: SpawnContext) -> None:
        super().__init__(config, mp_context)
        self._changes = Changes()
        self.open_catalogs()
        # dbt asks the instance for its class of relations.
        self.Relation = project_relation(self.has_branch, self.connections.external_sources.add)
        if self.connections.credentials.build_summary:
            own = self.connections.credentials.database
            BuildSummary(listen, self._changes, own, _logs_json(config))
        self.open_functions()
        self._after_commit = AfterCommit(
            self.connections.refresh_spark,
            self.connections.forget_results,
            self._changes.record,
            self._call_hook,
        )
        self._streams: dict[str, SourceDefinition] = {}
        self._groups = Groups(listen)
        self._notes_guard = threading.Lock()
        self._staged = threading.local()
        self._appends_noted = False
        self.command = str(getattr(getattr(config, "args", None), "which", ""))
        self.open_build(self.connections.credentials, self._after_commit.on_publication)
        self.open_unchanged()
        # A run that skips all its models needs no engine.
        if self.command in ENGINE_COMMANDS and not self.may_skip_all():
            threading.Thread(target=self.connections.resources.engine.prestart, daemon=True).start()

    @property
    def session(self) -> Session:
        return self.connections.current_session()

    @available.parse_none
    def merge_in_turn(self) -> None:
        """Let this thread's next merge wait for those of other batches of its model."""
        self.connections.merge_in_turn()

    # What dbt asks of every adapter

    @classmethod
    def date_function(cls) -> str:
        return "current_timestamp()"

    @classmethod
    def quote(cls, identifier: str) -> str:
        return quote(identifier)

    @classmethod
    def convert_text_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        return "string"

    @classmethod
    def convert_number_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        import agate

        return "double" if agate_table.aggregate(agate.MaxPrecision(col_idx)) else "bigint"

    @classmethod
    def convert_integer_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        return "bigint"

    @classmethod
    def convert_datetime_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        return "timestamp"

    @classmethod
    def convert_time_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        return "string"

    @classmethod
    def get_adapter_run_info(cls, config: Any) -> AdapterTrackingRelationInfo:
        # The base class makes the package's name from the class's, which has no underscore.
        return AdapterTrackingRelationInfo(  # type: ignore[abstract]  # dbt's own does the same
            adapter_name=cls.type(),
            base_adapter_version=base_version,
            adapter_version=version,
            model_adapter_details=cls._get_adapter_specific_run_info(config),
        )

    def debug_query(self) -> None:
        """Test the connection for `dbt debug`: Spark, Iceberg, and both catalog clients."""
        from dbt.adapters.iceberg_stream.engines.server_check import check_server

        with self.connections.exception_handler("dbt debug"):
            for line in check_server(self.session, self.catalog.name):
                logger.info(line)
        for name in self.catalogs.names:
            catalog = self.catalogs.get(name)
            catalog.namespaces()
            shown = "Catalog" if self.catalogs.is_own(name) else f"Catalog {name}"
            for capability, supported in catalog.capabilities().items():
                logger.info(f"{shown}: {capability}: {'yes' if supported else 'no'}")

    def valid_incremental_strategies(self) -> list[str]:
        return list(STRATEGIES)

    def execute(
        self, sql: str, auto_begin: bool = False, fetch: bool = False, limit: int | None = None
    ) -> tuple[AdapterResponse, agate.Table]:
        if (deferred := self.deferred_call(sql, fetch)) is not None:
            return deferred
        response, table = super().execute(sql, auto_begin, fetch, limit)
        if isinstance(response, IcebergStreamResponse) and response.target:
            self._after_commit.on_spark_commit(response.target, response.outcome)
        return response, table

    def validate_sql(self, sql: str) -> AdapterResponse:
        with self.connections.exception_handler(sql):
            self.session.schema(self.prepare(sql))
        return AdapterResponse("OK")

    # Namespaces and relations, from the catalog

    def list_relations_without_caching(self, schema_relation: BaseRelation) -> list[BaseRelation]:
        namespace = str(schema_relation.schema)
        if (catalog := self.catalogs.find_catalog(schema_relation.database)) is None:
            # Sources may be tables that only Spark knows.
            return []
        relations: Iterable[tuple[str, str]] = catalog.relations(namespace)
        if self.build is not None and catalog is self.catalog:
            relations = self.build.kinds(namespace, relations)
        return [
            self.Relation.create(
                database=schema_relation.database or catalog.name,
                schema=namespace,
                identifier=name,
                type=RelationType(kind),
            )
            for name, kind in relations
            if split_staged(name) is None
        ]

    @available.parse_none
    def get_relation(self, database: str, schema: str, identifier: str) -> BaseRelation | None:
        """Return a relation of the cache by its key: dbt searches all relations of the schema."""
        if (database, schema) not in self.cache:
            relation: BaseRelation | None = super().get_relation(database, schema, identifier)
            return relation
        key = _make_ref_key(self.Relation.create(database, schema, identifier))
        with self.cache.lock:
            cached = self.cache.relations.get(key)
        matches = [] if cached is None else [cached.inner]
        return next(iter(self._make_match(matches, database, schema, identifier)), None)

    def _make_match_kwargs(self, database: str, schema: str, identifier: str) -> dict[str, str]:
        # Names of an Iceberg catalog are case-sensitive, quoted or not.
        names = {"database": database, "schema": schema, "identifier": identifier}
        return {key: name for key, name in names.items() if name is not None}

    @available.parse_none
    def create_schema(self, relation: BaseRelation) -> None:
        self.catalog_of(relation).create_namespace(str(relation.schema))

    @available.parse_none
    def drop_schema(self, relation: BaseRelation) -> None:
        """Drop a namespace with its tables and views, their files, and what is staged there."""
        from dbt.adapters.iceberg_stream.builds.build import discard_in
        from dbt.adapters.iceberg_stream.tables.drop import drop_contents

        catalog, schema = self.catalog_of(relation), str(relation.schema)
        catalogs = self.connections.resources.catalogs
        discard_in(catalog, schema, catalogs)
        drop_contents(catalog, schema, catalogs)
        for contained in self.list_relations_without_caching(relation):
            self.drop_relation(contained)
        catalog.drop_namespace(schema)
        self.cache.drop_schema(relation.database, relation.schema)

    @available.parse_none
    def drop_from_catalog(self, relation: BaseRelation) -> None:
        """Drop a table or view with its files; Spark's own purge takes a second for its jobs."""
        catalog, name = self.catalog_of(relation), table_name(relation)
        if split_staged(name[1]) is None:
            from dbt.adapters.iceberg_stream.tables.drop import drop_table

            # Another writer may have put a table in the place of the view that dbt knows.
            kind = str(relation.type) if relation.is_table or relation.is_view else None
            drop_table(catalog, name, self.connections.resources.catalogs, kind)
        else:
            catalog.unregister(name)  # it shares files with the published one
        self.connections.forget_results(self.qualified_name(relation))

    def rename_relation(self, from_relation: BaseRelation, to_relation: BaseRelation) -> None:
        super().rename_relation(from_relation, to_relation)
        self._changes.rename(self.qualified_name(from_relation), self.qualified_name(to_relation))

    @available.parse_none
    def row_drop_warning(self, relation: BaseRelation, model: Mapping[str, Any]) -> str | None:
        """Return the warning of `warn_row_drop` if this run removed too many rows."""
        return check_row_drop(self._changes, self.qualified_name(relation), model)

    @available.parse_none
    def note_staged(self, relation: BaseRelation) -> None:
        """Note a staged object, to drop it if the model fails before the swap."""
        self._staged.relation = relation

    @available.parse_none
    def forget_staged(self) -> None:
        self._staged.relation = None

    def post_model_hook(self, config: Mapping[str, Any], context: Any) -> None:
        """Drop the staged object of a model that failed before the swap."""
        relation, self._staged.relation = getattr(self._staged, "relation", None), None
        if relation is None:
            return
        name = table_name(relation)
        try:
            from dbt.adapters.iceberg_stream.builds.leftovers import drop_unfinished

            drop_unfinished(self.catalog_of(relation), name, self.connections.resources.catalogs)
        except CatalogError as error:
            logger.warning(f"{'.'.join(name)} is no longer needed, but cannot be dropped: {error}")

    @available.parse_list
    def get_columns_in_relation(self, relation: BaseRelation) -> list[IcebergStreamColumn]:
        catalog = self.catalogs.find_catalog(relation.database)
        # An earlier version has the columns that the table had then.
        in_version = getattr(relation, "as_of", None) is not None
        if relation.schema is None or catalog is None or in_version:
            with self.connections.exception_handler(str(relation)):
                columns = self.session.schema(f"select * from {relation}")
            if relation.schema is None:
                # An increment is compared with its table.
                columns = [(name, stored_type(kind)) for name, kind in columns]
            return self._columns(columns)
        return [
            self.Column(column.name, column.type, is_uuid=column.is_uuid)
            for column in catalog.columns(table_name(relation))
        ]

    @available.parse(lambda *a, **k: [])
    def get_column_schema_from_query(self, sql: str) -> list[IcebergStreamColumn]:
        """Return the columns of a query without running it; run its `sql_header`."""
        from dbt.adapters.iceberg_stream.sql.statements import split

        *header, query = split(sql)
        for statement in header:
            self.execute(statement)
        with self.connections.exception_handler(sql):
            return self._columns(self.session.schema(self.prepare(query)))

    @available.parse_none
    def stage_rows(self, staging: BaseRelation, query: str) -> None:
        """Run a query once, after its `sql_header`, and keep its rows as a temporary view."""
        from dbt.adapters.iceberg_stream.sql.statements import split

        *header, statement = split(query)
        for part in header:
            self.execute(part)
        self.connections.stage(str(staging.identifier), statement)

    def _columns(self, columns: Iterable[tuple[str, str]]) -> list[IcebergStreamColumn]:
        return [self.Column(name, dtype) for name, dtype in columns]

    def expand_column_types(self, goal: BaseRelation, current: BaseRelation) -> None:
        """Do nothing: Spark's strings have no length."""

    # For macros

    @available.parse(lambda *a, **k: None)
    def check_model(self, model: Mapping[str, Any]) -> Any:
        """Return the model's table layout; raise one error for all errors of its config."""
        ephemeral = [str(cte["id"]) for cte in model.get("extra_ctes") or ()]
        self.connections.nodes.begin_materialization(str(model["unique_id"]), ephemeral)
        layout = check_model_config(model)
        if model["config"].get("materialized") == "stream":
            from dbt.adapters.iceberg_stream.materializations.stream import check_stream

            context = self.context(model.get("database"))
            check_stream(context, model, self._streams.get(str(model["unique_id"])))
        return layout

    @available.parse_none
    def begin_hook(self) -> None:
        self.connections.begin_hook()

    @available.parse_none
    def end_hook(self, model: Mapping[str, Any]) -> None:
        self.connections.end_hook(str(model["unique_id"]))

    @available.parse(lambda *a, **k: True)
    def takes_limit(self, sql: str) -> bool:
        """Return whether a statement may have a limit; `call`, `show` and `describe` may not."""
        from dbt.adapters.iceberg_stream.sql.statements import ROW_COMMANDS, classify

        return classify(sql).verb not in ROW_COMMANDS

    @available.parse_none
    def require_views(self, relation: BaseRelation) -> None:
        self.catalog_of(relation).require_views()

    @available.parse_none
    def check_write(self, existing: BaseRelation | None, rows_only: bool = False) -> None:
        """Check that the user may write to the table, before any data is computed."""
        if existing is not None and existing.is_table:
            name = table_name(existing)
            # Staging has checked the published table, and the staged one is the user's own.
            if split_staged(name[1]) is None:
                self.catalog_of(existing).check_write(name, rows_only)

    @available.parse(lambda *a, **k: "append")
    def strategy_of(self, model: Mapping[str, Any]) -> str:
        """Return the strategy of an incremental model."""
        config = model["config"]
        strategy = strategy_of(config)
        if config.get("incremental_strategy") == "merge" and strategy == "append":
            with self._notes_guard:
                is_noted, self._appends_noted = self._appends_noted, True
            if not is_noted:
                logger.info(
                    f"{model['unique_id']} has `incremental_strategy: merge` but no `unique_key`, "
                    "so its rows are appended; the same applies to other models without one. To "
                    "update rows, set `unique_key` to the columns that identify one."
                )
        return strategy

    @available.parse(lambda *a, **k: "")
    def unique_suffix(self) -> str:
        """Return a suffix that is unique to this node and run."""
        return uuid.uuid4().hex[:12]

    @available.parse(lambda *a, **k: None)
    def relation_comment(self, relation: BaseRelation) -> str | None:
        return self.catalog_of(relation).comment(table_name(relation))

    @available.parse(lambda *a, **k: {})
    def changed_column_comments(
        self, relation: BaseRelation, documented: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the comments that differ from the table's, by column name."""
        columns = self.catalog_of(relation).columns(table_name(relation))
        current = {column.name.lower(): column for column in columns}
        wanted = {name.lower(): column["description"] for name, column in documented.items()}
        return {
            current[name].name: comment
            for name, comment in wanted.items()
            if (current[name].comment or "") != comment
        }

    @available.parse_none
    def require_columns(self, relation: BaseRelation, columns: list[str]) -> None:
        """Make columns required, so that every writer must give them a value."""
        self.catalog_of(relation).require_columns(table_name(relation), columns)

    # Materializations with Python

    def context(self, database: str | None = None) -> MaterializationContext:
        """Return what the Python of a materialization needs of the adapter.

        Args:
            database: the catalog of the model; the profile's own by default.
        """
        connections, catalog = self.connections, self.catalogs.get(database)

        def after_commit(name: Name, outcome: Outcome) -> None:
            qualified = self.catalogs.qualified(catalog.name, name)
            connections.on_write(qualified, outcome.snapshot_id)
            self._after_commit.on_adapter_commit(qualified, outcome)

        return MaterializationContext(
            catalog=catalog,
            catalogs=self.catalogs,
            credentials=connections.credentials,
            project_root=connections.project_root,
            principal=connections.principal_of(catalog.name),
            session=connections.current_session,
            with_valid_token=connections.with_valid_token,
            discard_session=connections.discard_session,
            has_default_settings=connections.has_default_settings,
            execute=self._execute_statement,
            few_rows=connections.few_rows,
            append_few_rows=connections.append_few_rows,
            note_own_table=connections.note_own_table,
            read_check=connections.read_check,
            database_errors=connections.exception_handler,
            turn_of=connections.turn_of,
            check_canceled=connections.refuse_if_canceled,
            reach=connections.resources.reach,
            after_commit=after_commit,
        )

    def _execute_statement(self, sql: str) -> IcebergStreamResponse:
        return cast(IcebergStreamResponse, self.execute(sql)[0])

    def _call_hook(self, name: QualifiedName, snapshot_id: int, branch: str | None) -> None:
        """Call `iceberg_stream__on_write`, if the project has such a macro."""
        if split_staged(name[-1]) is not None:
            return
        resolver, project = self.get_macro_resolver(), self.config.project_name
        if resolver is None or not resolver.find_macro_by_name(USER_HOOK, project, None):
            return
        relation = self.Relation.create(
            database=name[0] if len(name) == 3 else self.catalog.name,
            schema=name[-2],
            identifier=name[-1],
            type=RelationType.Table,
            branch=branch,
        )
        arguments = {"relation": relation, "snapshot_id": snapshot_id}
        self.execute_macro(USER_HOOK, kwargs=arguments)

    def set_macro_resolver(self, macro_resolver: Any) -> None:
        """Start a run of dbt, which calls this first: each run has its own commit groups."""
        super().set_macro_resolver(macro_resolver)
        self._groups = Groups(listen)
        self.open_unchanged()

    @available.parse_none
    def maintain_model(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Run the steps of the model's config `maintenance` that pay."""
        # It would change the layout of main; a branch has the files of main and its own.
        if model["config"].get("maintenance") and getattr(relation, "branch", None) is None:
            from dbt.adapters.iceberg_stream.materializations.maintenance import maintain_model

            context = self.connections.maintenance_context(relation.database)
            self.when_published(relation, partial(maintain_model, context, relation, model))

    @available.parse_none
    def maintain_table(self, table: BaseRelation | str, config: Any) -> None:
        """Run steps of maintenance on a table, for hooks and operations."""
        from dbt.adapters.iceberg_stream.materializations.maintenance import maintain_table

        database = None if isinstance(table, str) else table.database
        maintain_table(self.connections.maintenance_context(database), table, config)

    @available.parse(lambda *a, **k: "__stream_source")
    def declare_stream(
        self,
        model: Mapping[str, Any],
        relation: IcebergStreamRelation,
        configured: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> str:
        """Note the source of a stream model, and return its name in the model's query."""
        from dbt.adapters.iceberg_stream.materializations.stream import (
            require_stream,
            source_definition,
        )
        from dbt.adapters.iceberg_stream.materializations.stream_model import VIEW

        require_stream(model)
        self._streams[str(model["unique_id"])] = source_definition(relation, configured, options)
        return VIEW

    @available.parse(lambda *a, **k: [])
    def stream_columns(self, model: Mapping[str, Any], sql: str) -> list[tuple[str, str]]:
        """Return the names and types of the columns of a stream model's table."""
        from dbt.adapters.iceberg_stream.materializations.stream import stream_columns

        source = self._stream_of(model)
        return stream_columns(self.context(model.get("database")), self.prepare(sql), model, source)

    @available.parse_none
    def run_stream(
        self,
        model: Mapping[str, Any],
        relation: BaseRelation,
        sql: str,
        refresh: bool,
        nodes: Mapping[str, Mapping[str, Any]],
        selected: Sequence[str],
    ) -> IcebergStreamResponse:
        """Run the stream of a model; `nodes` are those of dbt's graph."""
        from dbt.adapters.iceberg_stream.materializations.stream import run_stream

        source, group = self._stream_of(model), None
        if name := model["config"].get("commit_group"):
            grouping = Grouping.of(nodes, selected)
            grouping.check_runnable(name, self.config.threads)
            group = self._groups.get(name, frozenset(grouping.members[name]))
        query = self.prepare(sql)
        return run_stream(
            self.context(relation.database), relation, query, model, source, refresh, group
        )

    def _stream_of(self, model: Mapping[str, Any]) -> SourceDefinition:
        source = self._streams.get(str(model["unique_id"]))
        if source is None:
            raise DbtRuntimeError(
                f"{model['unique_id']} is materialized as `stream` but never calls `stream()`: "
                "select from `{{ stream(source('schema', 'name')) }}` or "
                "`{{ stream(ref('model')) }}`."
            )
        return source


def _logs_json(config: Any) -> bool:
    return getattr(getattr(config, "args", None), "LOG_FORMAT", None) == "json"
