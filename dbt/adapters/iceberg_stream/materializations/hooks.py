"""What macros call of the materializations' Python. Each hook imports what it needs when called."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, Column, available
from dbt.adapters.base.meta import AdapterMeta
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, field_names
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.context import MaterializationContext
from dbt.adapters.iceberg_stream.relation import table_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.comparisons import comparable_sql
from dbt.adapters.iceberg_stream.sql.merge import as_operand, is_changed_sql

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
    from dbt.adapters.iceberg_stream.catalog.table_config import TableConfig
    from dbt.adapters.iceberg_stream.materializations.partitions import Partitions
    from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation

logger = Logger()


class MaterializationHooks(metaclass=AdapterMeta):
    """The part of the adapter that seeds, Python models, merges and queries use."""

    connections: Any

    @property
    @abstractmethod
    def catalogs(self) -> Catalogs:
        """The profile's catalogs."""

    @abstractmethod
    def catalog_of(self, relation: BaseRelation) -> IcebergCatalog:
        """Return the catalog of a relation."""

    @abstractmethod
    def when_published(self, relation: BaseRelation, action: Callable[[], None]) -> None:
        """Run an action on a relation, after the build is published if it is staged."""

    @abstractmethod
    def prepare(self, sql: str) -> str:
        """Return a query with what it calls of the project's functions."""

    @abstractmethod
    def get_column_schema_from_query(self, sql: str) -> Sequence[Column]:
        """Return the columns of a query."""

    @abstractmethod
    def get_columns_in_relation(self, relation: BaseRelation) -> Sequence[Column]:
        """Return the columns of a relation."""

    @abstractmethod
    def context(self, database: str | None = None) -> MaterializationContext:
        """Return what the Python of a materialization works with."""

    @available.parse_none
    def merge_by_rewrite(
        self,
        relation: BaseRelation,
        staging: BaseRelation,
        plan: Mapping[str, Any],
        model: Mapping[str, Any],
    ) -> IcebergStreamResponse:
        """Merge by rewriting the files that change, or return why Spark must run the merge."""
        from dbt.adapters.iceberg_stream.materializations.merge import merge_by_rewrite

        return merge_by_rewrite(self.context(relation.database), relation, staging, plan, model)

    @available.parse_none
    def merge_few_rows(
        self,
        relation: BaseRelation,
        query: str,
        plan: Mapping[str, Any],
        model: Mapping[str, Any],
    ) -> IcebergStreamResponse | None:
        """Merge the rows of a query if they are few; return None if they must be staged."""
        from dbt.adapters.iceberg_stream.materializations.merge_plan import merge_few_rows

        return merge_few_rows(self.context(relation.database), relation, query, plan, model)

    @available.parse(lambda *a, **k: True)
    def is_previewed(self, relation: BaseRelation) -> bool:
        """Return whether a table is small enough to see first what Spark's merge would change."""
        from dbt.adapters.iceberg_stream.materializations.merge import is_previewed

        metadata = self.context(relation.database).catalog.metadata(table_name(relation))
        return is_previewed(metadata, getattr(relation, "branch", None) or MAIN)

    @available.parse_none
    def check_increment(self, relation: BaseRelation, staging: BaseRelation) -> None:
        """Check that an increment was not computed from a table that has changed since."""
        from dbt.adapters.iceberg_stream.materializations.merge import check_increment

        check_increment(self.context(relation.database), relation, staging)

    @available.parse_none
    def append_few_rows(self, relation: BaseRelation, query: str) -> IcebergStreamResponse | None:
        """Append the rows of a query if they are few; return None if Spark must append them."""
        from dbt.adapters.iceberg_stream.materializations.append import append_few_rows

        return append_few_rows(self.context(relation.database), relation, query)

    @available.parse_none
    def clone_table(
        self, origin: BaseRelation, relation: BaseRelation, final: BaseRelation
    ) -> IcebergStreamResponse | None:
        """Clone a table; log why and return None if it cannot be cloned."""
        from dbt.adapters.iceberg_stream.materializations.clone import clone_table

        return clone_table(self.context(relation.database), origin, relation, final)

    @available
    @staticmethod
    def get_changed_sql(columns: Sequence[Column], target: str, source: str) -> str:
        """Return the condition that a column differs between the two aliases of a MERGE."""
        return is_changed_sql([(c.name, c.data_type) for c in columns], target, source)

    @available.parse_list
    def get_missing_columns(
        self, from_relation: BaseRelation, to_relation: BaseRelation
    ) -> list[Column]:
        """Return the columns that `to_relation` lacks, whatever the letter case of their names."""
        existing = {column.name.lower() for column in self.get_columns_in_relation(to_relation)}
        columns = self.get_columns_in_relation(from_relation)
        return [column for column in columns if column.name.lower() not in existing]

    @available.parse_none
    def assert_valid_snapshot_target_given_strategy(
        self, relation: BaseRelation, column_names: Mapping[str, str], strategy: Mapping[str, Any]
    ) -> None:
        """Check that a table has the columns that dbt adds to a snapshot, in any letter case."""
        from dbt.adapters.iceberg_stream.materializations.snapshot import check_target

        check_target(self.get_columns_in_relation(relation), column_names, strategy)

    @available.parse_none
    def check_snapshot_query(
        self, model: Mapping[str, Any], strategy: Mapping[str, Any], columns: Sequence[Column]
    ) -> None:
        """Check the names of a snapshot's columns, and that deletions can be dated."""
        from dbt.adapters.iceberg_stream.materializations.snapshot import check_query

        check_query(model, strategy, columns)

    @available.parse_list
    def checked_columns(self, model: Mapping[str, Any], columns: Sequence[Column]) -> list[Column]:
        """Return the columns of a snapshot's query that `check_cols` names."""
        from dbt.adapters.iceberg_stream.materializations.snapshot import checked_columns

        return checked_columns(model, columns)

    @available.parse(lambda *a, **k: [])
    def columns_to_widen(
        self, relation: IcebergStreamRelation, queried: Sequence[Column]
    ) -> list[Column]:
        """Return the columns of a query whose types a snapshot's table has to take."""
        from dbt.adapters.iceberg_stream.materializations.snapshot import columns_to_widen

        return columns_to_widen(str(relation), self.get_columns_in_relation(relation), queried)

    @available.parse(lambda *a, **k: "")
    def row_changed_sql(
        self, checked: Sequence[Column], relation: BaseRelation, stored: str, queried: str
    ) -> str:
        """Return the condition that one of the columns differs from a snapshot's table."""
        from dbt.adapters.iceberg_stream.materializations.snapshot import row_changed_sql

        return row_changed_sql(checked, self.get_columns_in_relation(relation), stored, queried)

    @available
    @staticmethod
    def comparable_sql(column: Column) -> str:
        """Return a column as Spark can compare it."""
        return comparable_sql(column.quoted, column.data_type)

    @available.parse(lambda *a: "")
    def get_merge_sql(
        self,
        relation: BaseRelation,
        staging: BaseRelation,
        columns: Sequence[Column],
        plan: Mapping[str, Any],
    ) -> str:
        """Return the MERGE of a staging table into a table."""
        from dbt.adapters.iceberg_stream.materializations.merge import spark_merge_sql

        names = [column.name for column in columns]
        staged = [column.name for column in self.get_columns_in_relation(staging)]
        return spark_merge_sql(relation, staging, names, staged, plan)

    @available.parse(lambda self, relation, layout, *a: layout)
    def spell_layout(
        self, relation: BaseRelation, layout: TableConfig, select: str, header: str | None
    ) -> TableConfig:
        """Return a table's layout with the columns in the letter case of a model's query."""
        # The header's functions are created with the table.
        if header or not (layout.partition_by or layout.sort_order):
            return layout
        names = [column.name for column in self.get_column_schema_from_query(select)]
        spelled = layout.spelled(names)
        if layout.partition_by:
            replaced = self.catalog_of(relation).metadata(table_name(relation), history=False)
            spelled.require_free_names(names, replaced)
        return spelled

    @available.parse(lambda *a, **k: [])
    def layout_alterations(
        self, relation: IcebergStreamRelation, layout: TableConfig, follows: bool
    ) -> list[str]:
        """Return the `alter table` clauses that give a table the layout of its model.

        Args:
            relation: the table.
            layout: the layout.
            follows: whether columns that are missing come with the increment.
        """
        if layout.is_default:
            return []
        name = table_name(relation)
        metadata = self.catalog_of(relation).require_metadata(name, history=False)
        missing = layout.missing_columns(field_names(metadata).values()) if follows else []
        alterations = layout.without_columns(missing).alterations(name, metadata)
        if alterations and relation.branch is not None:
            logger.info(
                f"{'.'.join(name)} keeps its layout, which is that of all its "
                f"branches, because this run writes to the branch `{relation.branch}`."
            )
            return []
        return alterations

    def _partitions(self, relation: IcebergStreamRelation) -> Partitions:
        from dbt.adapters.iceberg_stream.materializations.partitions import Partitions

        return Partitions(self.catalog_of(relation), table_name(relation), relation.branch)

    @available.parse(lambda *a, **k: False)
    def is_partitioned(self, relation: IcebergStreamRelation) -> bool:
        """Return whether new files of a table are partitioned."""
        return self._partitions(relation).is_partitioned

    @available.parse(lambda *a, **k: [])
    def partitions_replaced_by(
        self, relation: IcebergStreamRelation, source: str, target: str
    ) -> list[tuple[str, str]]:
        """Return what is equal in rows of one partition, if files have an earlier layout."""
        return self._partitions(relation).replaced_by(source, target)

    @available.parse(lambda *a, **k: False)
    def range_is_aligned(
        self, relation: IcebergStreamRelation, column: str, batch_size: str
    ) -> bool:
        """Return whether a batch of microbatch is a set of whole files."""
        return self._partitions(relation).range_is_aligned(column, batch_size)

    @available.parse_none
    def refuse_partition_columns(
        self, relation: IcebergStreamRelation, removed: Sequence[Column]
    ) -> None:
        """Refuse to drop columns of a partition spec without which Iceberg fails.

        Raises:
            CompilationError: one of the columns has a partition field, which is needed to read the
                table, or to delete rows with merge-on-read.
        """
        if not removed:
            return
        partitions, columns = self._partitions(relation), [column.name for column in removed]
        if names := partitions.fields_of(columns):
            raise CompilationError(
                f"`{names[0]}` of {relation} cannot be dropped: it partitions the table, or did so "
                "in format version 1, which keeps such fields. Nothing was changed. Set "
                "`partition_by` to other columns; in format version 1, select the column again, or "
                "drop the table and build it with `format_version: 2`."
            )
        if names := partitions.needed_by_deletes(columns):
            raise CompilationError(
                f"`{names[0]}` of {relation} cannot be dropped: it once partitioned the table, and "
                "without it Iceberg's merge-on-read cannot delete rows any more. Nothing was "
                "changed. Set `merge_mode: copy-on-write`, or select the column again, as null if "
                "need be."
            )

    @available.parse_none
    def check_named_columns(
        self, model: Mapping[str, Any], returned: Sequence[Column], of_table: Sequence[Column]
    ) -> None:
        """Check that the columns that a model's config names exist."""
        from dbt.adapters.iceberg_stream.materializations.model_config import check_named_columns

        check_named_columns(model, [c.name for c in returned], [c.name for c in of_table])

    @available.parse(lambda *a: False)
    def names_unknown_updates(self, model: Mapping[str, Any], of_table: Sequence[Column]) -> bool:
        """Return whether a model chooses updates of columns that its table does not have."""
        from dbt.adapters.iceberg_stream.materializations.model_config import names_unknown_updates

        return names_unknown_updates(model, [c.name for c in of_table])

    @available.parse(lambda *a: {})
    @staticmethod
    def schema_changes(new: Sequence[Column], old: Sequence[Column]) -> dict[str, Any]:
        """Return how the columns of an increment differ from those of its table."""
        from dbt.adapters.iceberg_stream.materializations.schema_changes import schema_changes

        return schema_changes(new, old)

    @available.parse_none
    def check_fields(
        self, model: Mapping[str, Any], staging: BaseRelation, of_table: Sequence[Column]
    ) -> None:
        """Check that the fields of structs of an increment are those of its table."""
        if any("struct<" in column.data_type for column in of_table):
            from dbt.adapters.iceberg_stream.materializations.schema_changes import check_fields

            check_fields(model, self.get_columns_in_relation(staging), of_table)

    @available.parse(lambda *a: [])
    def lossy_keys(
        self, model: Mapping[str, Any], staging: BaseRelation, of_table: Sequence[Column]
    ) -> list[dict[str, str]]:
        """Return the columns of an increment's key whose values its table may not store exactly."""
        from dbt.adapters.iceberg_stream.materializations.schema_changes import lossy_keys

        return lossy_keys(
            model["config"], staging.render(), self.get_columns_in_relation(staging), of_table
        )

    @available.parse(lambda condition: "")
    @staticmethod
    def as_operand(condition: str | None) -> str:
        """Return a condition of the user's in parentheses; empty for none."""
        return as_operand(condition)

    @available.parse_none
    def change_rows(
        self,
        relation: BaseRelation,
        query: str,
        unique_key: str | Sequence[str] | None,
        action: str,
    ) -> IcebergStreamResponse:
        """Update or delete rows of a table by key, for hooks and operations."""
        from dbt.adapters.iceberg_stream.materializations.merge import change_rows

        prepared = self.prepare(query)
        return change_rows(self.context(relation.database), relation, prepared, unique_key, action)

    @available.parse_none
    def read_seed(self, load: Callable[[], agate.Table], delimiter: str) -> agate.Table:
        """Read a seed with all digits of its numbers; `load` reads it with dbt's types."""
        from dbt.adapters.iceberg_stream.materializations.seed import read_seed

        return read_seed(load, delimiter)

    @available.parse_none
    def run_in_utc(self, sql: str) -> None:
        """Run a statement in UTC, whatever the time zone of the session is."""
        from dbt.adapters.iceberg_stream.materializations.local_table import TIME_ZONE

        session = self.context().session()
        with self.connections.exception_handler(sql):
            zone = session.setting(TIME_ZONE)
            session.configure({TIME_ZONE: "UTC"})
            try:
                session.run(sql)
            finally:
                session.configure({TIME_ZONE: zone})

    @available.parse(lambda *a, **k: "")
    def batch_range_sql(
        self, relation: BaseRelation, model: Mapping[str, Any], alias: str | None = None
    ) -> str:
        """Return the condition that a row of a microbatch model is in the range of its batch."""
        from dbt.adapters.iceberg_stream.materializations.microbatch import batch_range_sql

        return batch_range_sql(self.get_columns_in_relation(relation), model, alias)

    @available.parse_none
    def build_seed(
        self,
        relation: BaseRelation,
        seed: agate.Table,
        layout: TableConfig,
        config: Mapping[str, Any],
        view: str,
    ) -> IcebergStreamResponse | None:
        """Build the table of a seed; return None if Spark must, from the temporary view."""
        from dbt.adapters.iceberg_stream.materializations.seed import build_seed

        return build_seed(self.context(relation.database), relation, seed, layout, config, view)

    @available.parse_none
    def build_python_model(
        self,
        relation: BaseRelation,
        code: str,
        layout: TableConfig,
        model: Mapping[str, Any],
        view: str,
    ) -> IcebergStreamResponse | None:
        """Run a Python model and build its table; return None if Spark must, from the view."""
        from dbt.adapters.iceberg_stream.materializations.python_model import build_python_model

        return build_python_model(
            self.context(relation.database), relation, code, layout, model, view
        )

    @available.parse_none
    def run_python_model(self, model: Mapping[str, Any], code: str, view: str) -> None:
        """Run a Python model, and register its result as a temporary view."""
        from dbt.adapters.iceberg_stream.materializations.python_model import run_to_view

        run_to_view(self.context(model.get("database")), model, code, view)

    @available.parse(lambda *a, **k: "")
    def relation_at(self, relation: BaseRelation, at: Any) -> str:
        """Return a relation in the version that a data test's config `at` names."""
        from dbt.adapters.iceberg_stream.materializations.data_tests import relation_at

        return relation_at(self.catalog_of(relation), relation, at)

    @available.parse_none
    def check_tag(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Check that the model's table can get the tag of `tag_on_success`."""
        from dbt.adapters.iceberg_stream.materializations.tag import check_tag

        check_tag(self.catalog_of(relation), relation, model)

    @available.parse_none
    def tag_model(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Set the tag of `tag_on_success`, once the model is published."""
        if model["config"].get("tag_on_success") is not None:
            from dbt.adapters.iceberg_stream.materializations.tag import tag_table

            self.when_published(
                relation, partial(tag_table, self.catalog_of(relation), relation, model)
            )

    @available.parse(lambda self, relation, *a: relation)
    def at_version(
        self,
        relation: IcebergStreamRelation,
        versions: Mapping[str, Any],
        node: Mapping[str, Any] | None,
    ) -> IcebergStreamRelation:
        """Return a relation in the version that the arguments of its method `at` name."""
        from dbt.adapters.iceberg_stream.materializations.time_travel import at_version

        return at_version(self.catalogs, relation, versions, node or {})

    @available.parse(lambda self, sql, *a: sql)
    def read_at(self, sql: str, own: IcebergStreamRelation, model: Mapping[str, Any]) -> str:
        """Return a model's query, without a semicolon, with the version of its config `read_at`."""
        from dbt.adapters.iceberg_stream.sql.statements import split

        if ";" in sql and len(queries := split(sql)) == 1:
            sql = queries[0]
        if model["config"].get("read_at") is None:
            return sql
        from dbt.adapters.iceberg_stream.materializations.time_travel import read_at

        # Functions may read tables, too.
        return read_at(self.catalogs, self.connections.functions.prepare(sql).sql, own, model)

    @available.parse(lambda *a, **k: [])
    def snapshot_versions(
        self, sql: str, model: Mapping[str, Any], columns: Sequence[Column], since_ms: int | None
    ) -> list[list[dict[str, Any]]]:
        """Return what the snapshot strategy `iceberg_history` reads, by statement."""
        from dbt.adapters.iceberg_stream.materializations import snapshot_history

        versions = snapshot_history.source_versions(self.catalogs, sql, model, since_ms)
        return snapshot_history.statements(
            versions, columns, self.get_column_schema_from_query, model["unique_id"]
        )

    @available.parse(lambda *a, **k: {})
    def row_counts(
        self, relation: BaseRelation, share: Any, since: Any, at: Any, where: str | None
    ) -> Mapping[str, Any]:
        """Return what the data test `row_drop` compares."""
        from dbt.adapters.iceberg_stream.materializations.data_tests import row_counts

        since, at = _versions_on_branch(relation, since, at)
        return row_counts(self.catalog_of(relation), relation, share, since, at, where)

    @available.parse(lambda *a, **k: {})
    def closed_rows(
        self, relation: BaseRelation, since: Any, at: Any, period: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return what the data test `unchanged_history` compares."""
        from dbt.adapters.iceberg_stream.materializations.data_tests import closed_rows

        since, at = _versions_on_branch(relation, since, at)
        return closed_rows(self.catalog_of(relation), relation, since, at, period)

    @available.parse(lambda self, sql, choice: sql)
    def read_deletes_once(self, sql: str, choice: str) -> str:
        """Return a query that reads tables with equality deletes as `read_deletes` says."""
        if choice == "spark":
            return sql  # without the import of what rewrites delete files
        from dbt.adapters.iceberg_stream.materializations.read_deletes import read_deletes_once

        return read_deletes_once(self.context(), sql, choice)


def _versions_on_branch(relation: BaseRelation, since: Any, at: Any) -> tuple[Any, Any]:
    """Return what a test compares: a branch with main, unless the test names versions."""
    if (branch := getattr(relation, "branch", None)) is None:
        return since, at
    return (MAIN if since is None else since), (branch if at is None else at)
