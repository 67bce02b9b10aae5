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
from dbt.adapters.events.logging import AdapterLogger
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.__version__ import version
from dbt.adapters.iceberg_stream.builds.names import with_published_names
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.engines.settings import DEFAULT_PACKAGES
from dbt.adapters.iceberg_stream.materializations.skipped_status import (
    SKIPPED,
    report_skipped_nodes,
)
from dbt.adapters.iceberg_stream.relation import published_name
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sql.statements import classify, split
from dbt.adapters.iceberg_stream.unchanged.code import ProjectCode
from dbt.adapters.iceberg_stream.unchanged.inputs import (
    NO_INPUTS,
    Inputs,
    UnknownInputs,
    capture_inputs,
)
from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    INCREMENTAL,
    NEVER_BUILT,
    BuildRecord,
    definition_digest,
    is_as_left,
    read_record,
    write_record,
    write_view_record,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.builds.run import BuildRun
    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
    from dbt.adapters.iceberg_stream.summary.changes import Changes

logger = AdapterLogger("Iceberg_Stream")

OPTION = "skip_unchanged"
# A variable of `--vars`; the environment has it in upper case.
VARIABLE = f"iceberg_stream_{OPTION}"
READING_VERBS = {"select", "values", "with", "set", "show", "describe", "explain", ""}


@dataclass(frozen=True)
class _Decision:
    """Whether a model must be built.

    Attributes:
        reason: why it must; None if it need not.
        record: what its build will leave, or has left; None if a build leaves no record.
        commits: how often this run has changed its table before.
    """

    reason: str | None
    record: BuildRecord | None = None
    commits: int = 0


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
        def catalog(self) -> IcebergCatalog:
            """The profile's catalog."""

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
        is_partial: bool = False,
        is_full_refresh: bool = False,
    ) -> IcebergStreamResponse | None:
        """Return a response if a model is as its last build left it; None to build it.

        Args:
            relation: the model's relation.
            model: the model's node in dbt's graph.
            is_increment: whether its query is that of an increment.
            is_partial: whether the command builds it without some of its rows.
            is_full_refresh: whether the command builds it whatever has changed.
        """
        node = str(model["unique_id"])
        self._building.pop(node, None)
        if is_partial or not self._is_enabled(model):
            return None
        report_skipped_nodes()
        decision = self._decide(relation, model, is_increment, is_full_refresh)
        if decision.reason is not None or decision.record is None:
            self._building[node] = decision
            self.reasons_to_build[node] = str(decision.reason)
            logger.debug(f"{node} is built: {decision.reason}")
            return None
        since = decision.record.built_at[:16].replace("T", " ")
        return IcebergStreamResponse(
            f"unchanged since {since} UTC",
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
        change = self._changes.get(published_name(relation))
        if change.commits > decision.commits:
            record = replace(record, snapshot_id=change.snapshot_id)
        self.when_published(relation, partial(self._write_record, relation, record))

    def _write_record(self, relation: BaseRelation, record: BuildRecord) -> None:
        name = published_name(relation)
        write = write_view_record if relation.is_view else write_record
        try:
            write(self.catalog, name, record)
        except CatalogError as error:
            logger.info(f"{'.'.join(name)} will be built again, changed or not: {error}")

    def _is_enabled(self, model: Mapping[str, Any]) -> bool:
        own = model["config"].get(OPTION)
        if own is False or (self.build is not None and self.build.settings.continues):
            return False
        command = self._command_option()
        if command is not None:
            return _as_bool(command)
        return bool(self.connections.credentials.skip_unchanged if own is None else own)

    def may_skip_all(self) -> bool:
        """Return whether the command or the profile lets a run skip all its models."""
        command = self._command_option()
        return bool(command or self.connections.credentials.skip_unchanged)

    def _command_option(self) -> Any:
        option = (getattr(self.config, "cli_vars", None) or {}).get(VARIABLE)
        return os.environ.get(VARIABLE.upper()) if option is None else option

    def _decide(
        self,
        relation: BaseRelation,
        model: Mapping[str, Any],
        is_increment: bool,
        is_full_refresh: bool,
    ) -> _Decision:
        own = published_name(relation)
        is_view = bool(relation.is_view)
        try:
            sql = self._query(relation, model)
            build = self.build.name if self.build is not None else None
            inputs = capture_inputs(self.catalog, sql, own, build) if sql else NO_INPUTS
        except UnknownInputs as reason:
            return _Decision(str(reason))
        metadata = self.catalog.metadata(own)
        record = self._new_record(model, sql, inputs, is_increment, metadata)
        commits = self._changes.get(own).commits
        if metadata is None:
            return _Decision("it does not exist", record, commits)
        if is_full_refresh:
            return _Decision("the command has `--full-refresh`", record, commits)
        last = read_record(metadata)
        if last is None or ("versions" in metadata) != is_view:
            return _Decision(NEVER_BUILT, record, commits)
        if change := last.change_to(record, inputs, with_rows=not is_view):
            return _Decision(change, record, commits)
        if not is_as_left(metadata, last):
            return _Decision("another writer has changed it", record, commits)
        return _Decision(None, last)

    def _query(self, relation: BaseRelation, model: Mapping[str, Any]) -> str:
        """Return a model's query, with all that it gets before Spark sees it.

        Raises:
            UnknownInputs: the model's rows do not depend on a query alone.
        """
        config = model["config"]
        is_python = model.get("language") == "python"
        if is_python and not config.get("deterministic"):
            raise UnknownInputs("it is a Python model without `deterministic: true`")
        if config.get("incremental_strategy") == "microbatch":
            raise UnknownInputs("its batches depend on the current time")
        for key in ("pre-hook", "post-hook"):
            for hook in config.get(key) or []:
                if _may_write(str(hook.get("sql") or "")):
                    raise UnknownInputs("it has hooks that may write")
        if model.get("resource_type") == "seed":
            return ""
        if is_python:
            return self._reads_of_python(model)
        sql = self.read_at(str(model["compiled_code"]), relation, model)
        prepared = self.connections.functions.prepare(sql)
        if prepared.python:
            raise UnknownInputs("it calls a Python function")
        return str(prepared.sql)

    def _reads_of_python(self, model: Mapping[str, Any]) -> str:
        """Return a query of what a Python model reads with `dbt.ref` and `dbt.source`."""
        manifest = self.get_macro_resolver()
        nodes = (
            manifest.nodes.get(unique_id) or manifest.sources.get(unique_id)
            for unique_id in sorted(model["depends_on"]["nodes"])
        )
        names = [self.Relation.create_from(self.config, node).render() for node in nodes if node]
        return f"select 1 from {', '.join(names)}" if names else "select 1"

    def _new_record(
        self,
        model: Mapping[str, Any],
        sql: str,
        inputs: Inputs,
        is_increment: bool,
        metadata: Any,
    ) -> BuildRecord:
        parts, is_static = self._code().parts(
            model, self.connections.project_root, self._variables(model)
        )
        if self.build is not None:
            # What this run builds has other names until it is published.
            sql = with_published_names(sql, self.build.name)
        return BuildRecord(
            code=parts,
            mode=INCREMENTAL if is_increment else FULL,
            query=definition_digest(sql),
            is_static=is_static,
            inputs=inputs.as_json(),
            snapshot_id=(metadata or {}).get("current-snapshot-id"),
            built_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _variables(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables that a node sees."""
        config = self.config
        package = str(model.get("package_name"))
        defined = dict(config.vars.to_dict()) | dict(config.vars.to_dict().get(package) or {})
        return defined | dict(config.cli_vars)

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
            "the user": self.connections.principal,
            "the catalog": catalog.properties.get("uri") if catalog else "",
            "the target": [self.config.target_name, profile.database],
        }


def _may_write(hook: str) -> bool:
    """Return whether a hook may change anything; one with Jinja may."""
    if "{{" in hook or "{%" in hook:
        return True
    return any(
        (statement := classify(text)).writes or statement.verb not in READING_VERBS
        for text in split(hook)
        if text.strip()
    )


def _as_bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false", "1", "0"):
        raise CompilationError(
            f"`{VARIABLE}` must be true or false; got {value!r}. Correct --vars or the environment "
            f"variable {VARIABLE.upper()}."
        )
    return text in ("true", "1")
