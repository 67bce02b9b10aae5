"""dbt's hooks. What is longer than a few lines lives in the room that it belongs to."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from multiprocessing.context import SpawnContext
from typing import TYPE_CHECKING, Any

from dbt.adapters.__about__ import version as base_version
from dbt.adapters.base import BaseRelation, ConstraintSupport, available
from dbt.adapters.base.relation import AdapterTrackingRelationInfo
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.contracts.connection import AdapterResponse
from dbt.adapters.contracts.relation import RelationType
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.contracts.constraints import ConstraintType
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.cache.invalidation import WriteNotice
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.engines.statements import classify, split
from dbt.adapters.iceberg_stream.merge.options import STRATEGIES, strategy_of
from dbt.adapters.iceberg_stream.materializations.model_config import check_key_columns, check_model_config
from dbt.adapters.iceberg_stream.own_writes import OwnWrites
from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation, quote
from dbt.adapters.iceberg_stream.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.stream.options import parse_stream_options

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.catalog.lake import Lake
    from dbt.adapters.iceberg_stream.cursor import Handle
    from dbt.adapters.iceberg_stream.engines.session import Session

logger = AdapterLogger("Iceberg_Stream")

# Commands that will need the engine: it starts while dbt parses the project.
ENGINE_COMMANDS = {"run", "build", "test", "seed", "snapshot", "show", "compile", "retry", "clone"}
ENGINE_COMMANDS |= {"run-operation", "freshness", "generate"}


# Statements that give rows and are no queries.
ROW_COMMANDS = {"call", "show", "describe", "desc", "explain"}


class IcebergStreamAdapter(OwnWrites):
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
        }
    )

    def __init__(self, config: Any, mp_context: SpawnContext) -> None:
        super().__init__(config, mp_context)
        self._notice = WriteNotice(self)
        self._notes_guard = threading.Lock()
        self._staged = threading.local()
        self._appends_noted = False
        if getattr(getattr(config, "args", None), "which", None) in ENGINE_COMMANDS:
            threading.Thread(target=self.connections.engine.prestart, daemon=True).start()

    @property
    def lake(self) -> Lake:
        return self.connections.lake

    @property
    def session(self) -> Session:
        handle: Handle = self.connections.get_thread_connection().handle
        return handle.session

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
        return AdapterTrackingRelationInfo(
            adapter_name=cls.type(),
            base_adapter_version=base_version,
            adapter_version=version,
            model_adapter_details=cls._get_adapter_specific_run_info(config),
        )

    def debug_query(self) -> None:
        """The connection test of `dbt debug`: Spark, its Iceberg, the catalog for both clients."""
        from dbt.adapters.iceberg_stream.engines.server_check import check_server

        with self.connections.exception_handler("dbt debug"):
            for line in check_server(self.session, self.lake.name):
                logger.info(line)
        self.lake.namespaces()
        for capability, there in self.lake.capabilities().items():
            logger.info(f"Catalog: {capability}: {'yes' if there else 'no'}")

    def valid_incremental_strategies(self) -> list[str]:
        return list(STRATEGIES)

    def execute(
        self, sql: str, auto_begin: bool = False, fetch: bool = False, limit: int | None = None
    ) -> tuple[AdapterResponse, agate.Table]:
        response, table = super().execute(sql, auto_begin, fetch, limit)
        if isinstance(response, IcebergStreamResponse) and response.relation:
            self._notice.after_write(response)
        return response, table

    def validate_sql(self, sql: str) -> AdapterResponse:
        with self.connections.exception_handler(sql):
            self.session.schema(sql)
        return AdapterResponse("OK")

    # Namespaces and relations, from the catalog

    def list_schemas(self, database: str) -> list[str]:
        return self.lake.namespaces()

    @available.parse(lambda *a, **k: False)
    def check_schema_exists(self, database: str, schema: str) -> bool:
        return self.lake.namespace_exists(schema)

    def list_relations_without_caching(self, schema_relation: BaseRelation) -> list[BaseRelation]:
        namespace = schema_relation.schema
        return [
            self.Relation.create(
                database=schema_relation.database or self.lake.name,
                schema=namespace,
                identifier=name,
                type=RelationType(kind),
            )
            for name, kind in self.lake.relations(str(namespace))
        ]

    def _make_match_kwargs(self, database: str, schema: str, identifier: str) -> dict[str, str]:
        # Names of an Iceberg catalog are case-sensitive, quoted or not.
        names = {"database": database, "schema": schema, "identifier": identifier}
        return {key: name for key, name in names.items() if name is not None}

    @available.parse_none
    def create_schema(self, relation: BaseRelation) -> None:
        self._check_database(relation)
        self.lake.create_namespace(str(relation.schema))

    @available.parse_none
    def drop_schema(self, relation: BaseRelation) -> None:
        """Drop a namespace and all that is in it, files included."""
        self._check_database(relation)
        for found in self.list_relations_without_caching(relation):
            self.drop_relation(found)
        self.lake.drop_namespace(str(relation.schema))
        self.cache.drop_schema(relation.database, relation.schema)

    @available.parse_none
    def drop_from_catalog(self, relation: BaseRelation) -> None:
        """Drop a table or view with its files. Spark's own purge starts jobs and takes a second."""
        name = str(relation.schema), str(relation.identifier)
        self.lake.drop(name)
        self.connections.forget_results(name)

    @available.parse_none
    def note_staged(self, relation: BaseRelation) -> None:
        """Note what takes the place of another object later, to be dropped where it does not."""
        self._staged.name = (str(relation.schema), str(relation.identifier))

    @available.parse_none
    def forget_staged(self) -> None:
        self._staged.name = None

    def post_model_hook(self, config: Mapping[str, Any], context: Any) -> None:
        """Drop what a model that failed has made to take the place of another object."""
        name, self._staged.name = getattr(self._staged, "name", None), None
        if name is None:
            return
        try:
            self.lake.drop(name)
        except CatalogError as error:
            logger.warning(f"{'.'.join(name)} is left behind, and no longer needed: {error}")

    def _check_database(self, relation: BaseRelation) -> None:
        if relation.database and relation.database.lower() != self.lake.name.lower():
            raise DbtRuntimeError(
                f"{relation} names the catalog `{relation.database}`, but this profile knows only "
                f"`{self.lake.name}`. Remove the `database` config, or set it in the profile."
            )

    @available.parse_list
    def get_columns_in_relation(self, relation: BaseRelation) -> list[IcebergStreamColumn]:
        if relation.schema is None:
            with self.connections.exception_handler(str(relation)):
                return self._columns(self.session.schema(f"select * from {relation}"))
        found = self.lake.columns((str(relation.schema), str(relation.identifier)))
        return self._columns((column.name, column.type) for column in found)

    @available.parse(lambda *a, **k: [])
    def get_column_schema_from_query(self, sql: str) -> list[IcebergStreamColumn]:
        """Columns of a query, without running it; a `sql_header` before it is run."""
        *header, query = split(sql)
        for statement in header:
            self.execute(statement)
        with self.connections.exception_handler(sql):
            return self._columns(self.session.schema(query))

    def _columns(self, columns: Iterable[tuple[str, str]]) -> list[IcebergStreamColumn]:
        return [self.Column(name, dtype) for name, dtype in columns]

    def expand_column_types(self, goal: BaseRelation, current: BaseRelation) -> None:
        """Nothing to widen: Spark's strings have no length."""

    # Documentation and freshness, from the catalog

    def _get_one_catalog(
        self, information_schema: Any, schemas: set[str], used_schemas: frozenset[tuple[str, str]]
    ) -> agate.Table:
        from dbt.adapters.iceberg_stream.catalog.docs import catalog_table

        found = (item for schema in sorted(schemas) for item in self.lake.describe(schema))
        return self._catalog_filter_table(catalog_table(self.lake.name, found), used_schemas)

    def _get_one_catalog_by_relations(
        self,
        information_schema: Any,
        relations: list[BaseRelation],
        used_schemas: frozenset[tuple[str, str]],
    ) -> agate.Table:
        from dbt.adapters.iceberg_stream.catalog.docs import catalog_table

        wanted = {(str(r.schema), str(r.identifier)) for r in relations}
        kinds = {
            (schema, name): kind
            for schema in {schema for schema, _ in wanted}
            for name, kind in self.lake.relations(schema)
        }
        found = [self.lake.describe_one(n, kinds[n]) for n in sorted(wanted) if n in kinds]
        table = catalog_table(self.lake.name, [item for item in found if item is not None])
        return self._catalog_filter_table(table, used_schemas)

    def get_catalog_for_single_relation(self, relation: BaseRelation) -> Any:
        from dbt.adapters.iceberg_stream.catalog.docs import single_relation

        name = (str(relation.schema), str(relation.identifier))
        kind = dict(self.lake.relations(name[0])).get(name[1])
        description = self.lake.describe_one(name, kind) if kind else None
        return single_relation(self.lake.name, description) if description else None

    def calculate_freshness_from_metadata_batch(
        self, sources: list[BaseRelation], macro_resolver: Any = None
    ) -> tuple[list[AdapterResponse | None], dict[BaseRelation, Any]]:
        """Freshness of tables from their current snapshots, without a statement."""
        now = datetime.now(timezone.utc)
        freshness = {
            source: self._create_freshness_response(
                self.lake.last_modified((str(source.schema), str(source.identifier))), now
            )
            for source in sources
        }
        return [AdapterResponse("OK")], freshness

    # For macros

    @available.parse(lambda *a, **k: None)
    def check_model(self, model: Mapping[str, Any]) -> Any:
        """The model's table layout; raises one error with all faults of its config."""
        layout = check_model_config(model)
        if model["config"].get("materialized") == "stream":
            parse_stream_options(model)
        return layout

    @available.parse(lambda *a, **k: True)
    def takes_limit(self, sql: str) -> bool:
        """Whether a limit may stand behind a statement: not behind `call`, `show`, `describe`."""
        return classify(sql).verb not in ROW_COMMANDS

    @available.parse_none
    def require_views(self) -> None:
        self.lake.require_views()

    @available.parse_none
    def check_write(self, existing: BaseRelation | None, rows_only: bool = False) -> None:
        """Raise before any data is computed, if the user may not write to the table."""
        if existing is not None and existing.is_table:
            self.lake.check_write((str(existing.schema), str(existing.identifier)), rows_only)

    @available.parse_none
    def check_key_columns(self, model: Mapping[str, Any], columns: Iterable[Any]) -> None:
        check_key_columns(model, [column.name for column in columns])

    @available.parse(lambda *a, **k: "append")
    def strategy_of(self, model: Mapping[str, Any]) -> str:
        """The strategy that an incremental model is built with."""
        config = model["config"]
        strategy = strategy_of(config)
        if config.get("incremental_strategy") == "merge" and strategy == "append":
            with self._notes_guard:
                told, self._appends_noted = self._appends_noted, True
            if not told:
                logger.info(
                    f"{model['unique_id']} has `incremental_strategy: merge` and no `unique_key`: "
                    "its rows are appended, as those of all models like it. To update rows, name "
                    "the columns that identify one."
                )
        return strategy

    @available.parse(lambda *a, **k: [])
    def layout_alterations(self, relation: BaseRelation, layout: Any) -> list[str]:
        """`alter table` clauses that give a table the layout its model asks for."""
        if layout.is_default:
            return []
        return layout.alterations(self.lake.table((str(relation.schema), str(relation.identifier))))

    @available.parse(lambda *a, **k: False)
    def is_partitioned(self, relation: BaseRelation) -> bool:
        table = self.lake.table((str(relation.schema), str(relation.identifier)))
        return not table.spec().is_unpartitioned()

    @available.parse(lambda *a, **k: False)
    def range_is_aligned(self, relation: BaseRelation, column: str, batch_size: str) -> bool:
        """Whether a batch of microbatch is a set of whole partitions."""
        from dbt.adapters.iceberg_stream.catalog.partitions import range_is_aligned

        table = self.lake.table((str(relation.schema), str(relation.identifier)))
        return range_is_aligned(table, column, batch_size)

    @available.parse(lambda *a, **k: "")
    def unique_suffix(self) -> str:
        """A suffix that no other node or run has."""
        return uuid.uuid4().hex[:12]

    @available.parse(lambda *a, **k: None)
    def relation_comment(self, relation: BaseRelation) -> str | None:
        return self.lake.comment((str(relation.schema), str(relation.identifier)))

    @available.parse(lambda *a, **k: {})
    def changed_column_comments(
        self, relation: BaseRelation, documented: Mapping[str, Any]
    ) -> dict[str, str]:
        """Comments by column name that differ from what the table says."""
        columns = self.lake.columns((str(relation.schema), str(relation.identifier)))
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
        self.lake.require_columns((str(relation.schema), str(relation.identifier)), columns)
