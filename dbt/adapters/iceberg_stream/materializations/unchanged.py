"""`skip_unchanged`: what materializations call to leave a model as its last build left it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.meta import AdapterMeta
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.builds.names import with_published_names
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.model_query import (
    NO_QUERY,
    ModelQuery,
    python_query,
    require_repeatable,
)
from dbt.adapters.iceberg_stream.materializations.skipped_status import (
    SKIPPED,
    report_skipped_nodes,
)
from dbt.adapters.iceberg_stream.materializations.strategies import HISTORY, strategy_of
from dbt.adapters.iceberg_stream.relation import published_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.results import CATALOG_ERRORS, reads_old_versions
from dbt.adapters.iceberg_stream.unchanged.code import ProjectCode
from dbt.adapters.iceberg_stream.unchanged.decision import Model, reason_to_build
from dbt.adapters.iceberg_stream.unchanged.inputs import (
    NO_INPUTS,
    Inputs,
    UnknownInputs,
    capture_inputs,
    digest,
)
from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    INCREMENTAL,
    BuildRecord,
    definition_digest,
    read_record,
    write_record,
    write_view_record,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.builds.run import BuildRun
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
    from dbt.adapters.iceberg_stream.profile.catalog_profile import CatalogProfile
    from dbt.adapters.iceberg_stream.summary.changes import Changes

logger = Logger()

OPTION = "skip_unchanged"
# Prefix of settings that name the branch or the staged snapshot of tables that are read.
WAP = "spark.wap."
# A variable of `--vars`; the environment has it in upper case.
VARIABLE = f"iceberg_stream_{OPTION}"
TRUE, FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True)
class _Decision:
    """Whether a model must be built.

    Attributes:
        reason: why it must; None if it need not.
        record: what its build will leave, or has left; None if a build leaves no record.
        query: its query.
        inputs: what that reads, as it was before the build.
        commits: how often this run has changed its table before.
        rows_changed: how many rows this run has changed in it before.
    """

    reason: str | None
    record: BuildRecord | None = None
    query: ModelQuery = NO_QUERY
    inputs: Inputs = NO_INPUTS
    commits: int = 0
    rows_changed: int = 0


class UnchangedHooks(metaclass=AdapterMeta):
    """The part of the adapter that decides which models need not be built."""

    config: Any
    connections: Any
    Relation: Any
    build: BuildRun | None
    _changes: Changes
    reasons_to_build: dict[str, str]

    if TYPE_CHECKING:

        @property
        def catalogs(self) -> Catalogs:
            """The profile's catalogs."""

        def get_macro_resolver(self) -> Any:
            """Return dbt's manifest."""

        def when_published(self, relation: BaseRelation, action: Callable[[], None]) -> None:
            """Run an action once a relation is published."""

        def read_at(self, sql: str, own: Any, model: Mapping[str, Any]) -> str:
            """Return a model's query with the version of its config `read_at`."""

    def open_unchanged(self) -> None:
        """Prepare to skip models, in a command that may do so."""
        self._project_code: ProjectCode | None = None
        self._code_lock = threading.Lock()
        # By node, for run_results.json and `iceberg-stream why`.
        self.reasons_to_build: dict[str, str] = {}
        # By node, the decision on the build in progress.
        self._building: dict[str, _Decision] = {}

    @available.parse_none
    def skip_unchanged(
        self,
        relation: BaseRelation,
        model: Mapping[str, Any],
        is_increment: bool = False,
        is_full_refresh: bool = False,
    ) -> IcebergStreamResponse | None:
        """Return a response if a model is as its last build left it; None to build it.

        Args:
            relation: the model's relation.
            model: the model's node in dbt's graph.
            is_increment: whether its query is that of an increment.
            is_full_refresh: whether the command builds it whatever has changed.
        """
        node = str(model["unique_id"])
        self._building.pop(node, None)
        if getattr(relation, "branch", None) is not None:
            # The record in the table's properties is that of main.
            return None
        if not self._records(model):
            return None
        report_skipped_nodes()
        order = self._order(model, is_full_refresh)
        decision = self._decide(relation, model, is_increment, order)
        if decision.reason is not None or decision.record is None:
            self._building[node] = decision
            self.reasons_to_build[node] = str(decision.reason)
            logger.debug(f"{node} is built: {decision.reason}")
            return None
        return IcebergStreamResponse(
            f"unchanged since {as_utc(decision.record.built_at)}",
            code=SKIPPED,
            rows_affected=0,
            relation=".".join(published_name(relation)),
        )

    @available.parse_none
    def record_build(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Record what the model was built from, once it is published."""
        decision = self._building.pop(str(model["unique_id"]), None)
        if decision is None or (record := decision.record) is None:
            return
        own = self._published(relation)
        try:
            inputs = self._inputs(decision.query, own, model)
        except (UnknownInputs, *CATALOG_ERRORS) as unknown:
            logger.debug(f"{own} will be built again: {unknown}")
            return
        if inputs.changed_since(decision.inputs, with_rows=not relation.is_view):
            # The query may have read the rows of either version, or of one between them.
            logger.debug(f"{own} will be built again: its tables changed meanwhile")
            return
        change = self._changes.get(own)
        if change.commits > decision.commits:
            record = replace(record, snapshot_id=change.snapshot_id)
        record = replace(record, changed_rows=change.rows_changed > decision.rows_changed)
        self.when_published(relation, partial(self._write_record, relation, record))

    def _write_record(self, relation: BaseRelation, record: BuildRecord) -> None:
        name = published_name(relation)
        write = write_view_record if relation.is_view else write_record
        try:
            write(self.catalogs.get(relation.database), name, record)
        except CatalogError as error:
            logger.info(f"{'.'.join(name)} will be built again, changed or not: {error}")

    def _published(self, relation: BaseRelation) -> QualifiedName:
        return self.catalogs.qualified(relation.database, published_name(relation))

    def _default_of(self, model: Mapping[str, Any]) -> bool | None:
        """Return whether profile and config say to skip a model; None if nothing may skip it."""
        own = model["config"].get(OPTION)
        if own is False or (self.build is not None and self.build.settings.continues):
            return None
        return bool(self.connections.credentials.skip_unchanged if own is None else own)

    def _records(self, model: Mapping[str, Any]) -> bool:
        """Return whether the command skips a node, or leaves a record that lets later ones skip it.

        Neither does a command that reads only some of the rows.
        """
        if any(getattr(self.config.args, option, None) for option in ("empty", "sample")):
            return False
        default, command = self._default_of(model), self._command_option()
        return default is not None and (default or (command is not None and _as_bool(command)))

    def _order(self, model: Mapping[str, Any], is_full_refresh: bool) -> str | None:
        """Return why the command skips no node, whatever has changed; None if it may."""
        if is_full_refresh:
            return "the command has `--full-refresh`"
        command = self._command_option()
        skips = self._default_of(model) if command is None else _as_bool(command)
        return None if skips else "the command does not use `skip_unchanged`"

    def may_skip_all(self) -> bool:
        """Return whether the command or the profile lets a run skip all its models."""
        command = self._command_option()
        if command is None:
            return bool(self.connections.credentials.skip_unchanged)
        # Other values are refused when the first model begins.
        return str(command).strip().lower() in TRUE

    def _command_option(self) -> Any:
        option = (getattr(self.config, "cli_vars", None) or {}).get(VARIABLE)
        return os.environ.get(VARIABLE.upper()) or None if option is None else option

    def _decide(
        self,
        relation: BaseRelation,
        model: Mapping[str, Any],
        is_increment: bool,
        order: str | None,
    ) -> _Decision:
        """Decide on a model; `order` is why the command builds it in any case, if it does."""
        own, is_view = self._published(relation), bool(relation.is_view)
        try:
            self._require_initial_session()
            query = self._query(relation, model)
            inputs = self._inputs(query, own, model)
        except UnknownInputs as unknown:
            return _Decision(str(unknown))
        metadata, change = self.catalogs.metadata(own), self._changes.get(own)
        record = self._new_record(model, query.text, inputs, is_increment, metadata)
        last = None if metadata is None else read_record(metadata)
        current = Model(
            model["config"],
            strategy_of(model["config"]),
            is_view,
            inputs.reads_own or query.reads_own,
        )
        reason = reason_to_build(current, metadata, last, record, inputs) or order
        if reason is not None or last is None:
            return _Decision(reason, record, query, inputs, change.commits, change.rows_changed)
        if not is_view:
            self._follow_compactions(relation, last, record)
        return _Decision(None, last)

    def _follow_compactions(
        self, relation: BaseRelation, last: BuildRecord, record: BuildRecord
    ) -> None:
        """Record the current snapshots, because those of the last build may expire."""
        current = replace(last, inputs=record.inputs, snapshot_id=record.snapshot_id)
        if current != last:
            self._write_record(relation, current)

    def _query(self, relation: BaseRelation, model: Mapping[str, Any]) -> ModelQuery:
        """Return a model's query, with all that it gets before Spark sees it.

        Raises:
            UnknownInputs: the model's rows do not depend on a query alone.
        """
        require_repeatable(model)
        if macro := self._code().override_of_rows(model["config"]):
            raise UnknownInputs(f"the project overrides `{macro}`, which may read anything")
        if model.get("resource_type") == "seed":
            return NO_QUERY
        if model.get("language") == "python":
            return python_query(model)
        sql = self.read_at(str(model["compiled_code"]), relation, model)
        sql = self._prepared(sql)
        return ModelQuery(sql, sql)

    def _prepared(self, sql: str) -> str:
        """Return a query with what it calls of the project's functions.

        Raises:
            UnknownInputs: it calls one in Python.
        """
        prepared = self.connections.functions.prepare(sql)
        if prepared.python:
            raise UnknownInputs("it calls a Python function")
        return prepared.sql

    def _inputs(self, query: ModelQuery, own: QualifiedName, model: Mapping[str, Any]) -> Inputs:
        """Return what a model reads.

        Raises:
            UnknownInputs: the rows depend on more than tables of the catalog.
        """
        if not query.reading:
            return NO_INPUTS
        self._require_current_reads()
        build = self.build.name if self.build is not None else None
        with_history = model["config"].get("strategy") == HISTORY
        inputs = capture_inputs(self.catalogs, query.reading, own, build, with_history)
        reads_own = inputs.reads_own or query.reads_own
        if reads_own and model["config"].get("materialized") != "incremental":
            raise UnknownInputs("it reads its own table")
        return inputs

    def _require_initial_session(self) -> None:
        """Require that no statement of the node has changed its session.

        Raises:
            UnknownInputs: one has, so that the same query may return other rows.
        """
        if not self.connections.has_default_settings():
            raise UnknownInputs("one of its statements has changed the session, e.g. by `set`")

    def _require_current_reads(self) -> None:
        """Require that Spark reads the current versions of tables.

        Raises:
            UnknownInputs: it may read others.
        """
        profile = self.connections.credentials
        if any(reads_old_versions(each.settings()) for each in profile.all_catalogs()):
            raise UnknownInputs(
                "a catalog has `cache-enabled`, so Spark may read old versions of its tables"
            )
        if option := next((name for name in profile.spark_conf if name.startswith(WAP)), None):
            raise UnknownInputs(f"`{option}` chooses the versions of tables that Spark reads")

    def _new_record(
        self,
        model: Mapping[str, Any],
        sql: str,
        inputs: Inputs,
        is_increment: bool,
        metadata: Any,
    ) -> BuildRecord:
        root = self.connections.project_root
        if self.build is not None:
            # What this run builds has other names until it is published.
            sql = with_published_names(sql, self.build.name)
        current = (metadata or {}).get("current-snapshot-id")
        return BuildRecord(
            code=self._code().parts(model, root, self._variables(model)),
            mode=INCREMENTAL if is_increment else FULL,
            query=digest(sql) if model.get("language") == "python" else definition_digest(sql),
            inputs=inputs.as_json(),
            snapshot_id=None if current == -1 else current,
            built_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _variables(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables that a node sees."""
        config = self.config
        defined = dict(config.vars.to_dict())
        own = defined.get(str(model.get("package_name")))
        return defined | (own if isinstance(own, dict) else {}) | dict(config.cli_vars)

    def _code(self) -> ProjectCode:
        """Return the project's macros; dbt's manifest stays the same in one run."""
        with self._code_lock:
            if self._project_code is None:
                self._project_code = ProjectCode(
                    self.get_macro_resolver().macros, self._everywhere()
                )
            return self._project_code

    def _everywhere(self) -> dict[str, Any]:
        """Return what the rows of all models depend on, in the words of messages."""
        profile = self.connections.credentials
        catalog = profile.catalog_settings()
        others = {
            other.name: [_address(other), self.connections.owner_of(other.name)]
            for other in profile.other_catalogs()
        }
        versions = {
            "the version of the adapter": version,
            "the version of dbt": installed("dbt-core"),
        }
        if profile.method == "connect":
            engine: Any = self.connections.current_session().version()
        else:
            engine = [installed("pyspark"), *DEFAULT_PACKAGES, *sorted(profile.packages)]
        return versions | {
            "the version of Spark": engine,
            "the engine": [profile.method, profile.host, profile.port, profile.spark_conf],
            "the user": self.connections.owner_of(profile.own_catalog().name),
            "the catalog": catalog.properties.get("uri") if catalog else "",
            **({"the other catalogs": others} if others else {}),
            "the target": [self.config.target_name, profile.database],
        }


def as_utc(time: str) -> str:
    """Return an ISO 8601 time in UTC as dbt's users read it."""
    return f"{time[:16].replace('T', ' ')} UTC"


def _address(profile: CatalogProfile) -> str:
    settings = profile.settings()
    return str(settings.properties.get("uri")) if settings else profile.warehouse


def _as_bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in (*TRUE, *FALSE):
        raise CompilationError(
            f"`{VARIABLE}` must be true or false; got {value!r}. Correct --vars or the environment "
            f"variable {VARIABLE.upper()}."
        )
    return text in TRUE
