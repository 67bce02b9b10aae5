"""`skip_unchanged` of data tests: what the materialization `test` calls to reuse a pass."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import available
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.builds.names import with_published_names
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be
from dbt.adapters.iceberg_stream.materializations.skipped_status import (
    SKIPPED,
    report_skipped_nodes,
)
from dbt.adapters.iceberg_stream.materializations.unchanged import OPTION, UnchangedHooks, as_utc
from dbt.adapters.iceberg_stream.sessions.response import IcebergStreamResponse
from dbt.adapters.iceberg_stream.sessions.results import CATALOG_ERRORS, catalog_keys
from dbt.adapters.iceberg_stream.unchanged.inputs import (
    Inputs,
    UnknownInputs,
    capture_inputs,
    digest,
)
from dbt.adapters.iceberg_stream.unchanged.passed_tests import (
    FILE,
    NEVER_PASSED,
    PassedTest,
    PassedTests,
)
from dbt.adapters.iceberg_stream.unchanged.record import definition_digest

if TYPE_CHECKING:
    import agate

logger = Logger()

COLUMNS = ("failures", "should_warn", "should_error")


@dataclass(frozen=True)
class _Run:
    """A run of a test that is in progress.

    Attributes:
        sql: the statement, with what it calls of the project's functions.
        inputs: what it read at the start.
        record: what it leaves if it passes.
    """

    sql: str
    inputs: Inputs
    record: PassedTest


class DataTestHooks(UnchangedHooks):
    """The part of the adapter that decides which data tests need not run."""

    def open_unchanged(self) -> None:
        super().open_unchanged()
        self._test_runs: dict[str, _Run] = {}

    @available.parse_none
    def reuse_test(
        self,
        model: Mapping[str, Any],
        sql: str,
        stores_failures: bool = False,
        is_full_refresh: bool = False,
    ) -> dict[str, Any] | None:
        """Return the result of a data test that has passed and would again; None to run it.

        Args:
            model: the test's node in dbt's graph.
            sql: the statement that counts its failures.
            stores_failures: whether it writes a table of its failures.
            is_full_refresh: whether the command runs it whatever has changed.

        Returns:
            The `response`, and the `table` with the row of a test that has passed.
        """
        node = str(model["unique_id"])
        self._test_runs.pop(node, None)
        _check_option(model)
        if not self._records(model):
            return None
        report_skipped_nodes()
        reason: str | None = self._order(model, is_full_refresh)
        try:
            if stores_failures:
                raise UnknownInputs("it stores its failures")
            run, last = self._new_run(model, sql), self._passed_tests().get(node)
        except UnknownInputs as unknown:
            self._begin(node, str(unknown))
            return None
        if last is None or reason is not None:
            reason = reason or NEVER_PASSED
        else:
            reason = last.change_to(run.record, run.inputs)
        if reason is not None or last is None:
            self._begin(node, str(reason))
            self._test_runs[node] = run
            return None
        if last.inputs != run.record.inputs:
            # Compactions have the same rows, and the snapshots before them may expire.
            self._keep(node, PassedTest(**{**vars(run.record), "passed_at": last.passed_at}))
        response = IcebergStreamResponse(
            f"passed at {as_utc(last.passed_at)}, unchanged since", code=SKIPPED, rows_affected=0
        )
        return {"response": response, "table": _passed()}

    @available.parse_none
    def keep_test(self, model: Mapping[str, Any], result: agate.Table) -> None:
        """Keep the record of a data test if it has passed, and nothing changed meanwhile.

        Args:
            model: the test's node in dbt's graph.
            result: the row that its statement has returned.
        """
        node = str(model["unique_id"])
        run = self._test_runs.pop(node, None)
        if run is None or not _has_passed(result):
            return
        try:
            inputs = self._inputs_of(run.sql)
        except UnknownInputs as unknown:
            logger.debug(f"{node} will run again: {unknown}")
            return
        if inputs.changed_since(run.inputs):
            # The query may have read the rows of either version, or of one between them.
            logger.debug(f"{node} will run again: its tables changed while it ran")
            return
        self._keep(node, run.record)

    def _keep(self, node: str, record: PassedTest) -> None:
        try:
            self._passed_tests().put(node, record)
        except (sqlite3.Error, OSError) as error:
            logger.info(f"{node} will run again, whatever has changed: {error}")

    def _begin(self, node: str, reason: str) -> None:
        """Note why a test runs, and forget that it has passed: it may fail now.

        Raises:
            CompilationError: the file of passed tests cannot be written, so that a later command
                would reuse the earlier result.
        """
        self.reasons_to_build[node] = reason
        logger.debug(f"{node} runs: {reason}")
        try:
            self._passed_tests().forget(node)
        except UnknownInputs:
            return  # Nothing is kept with these catalogs.
        except (sqlite3.Error, OSError) as error:
            raise CompilationError(
                f"{node} cannot forget its earlier result: {error}. Remove {self._path}."
            ) from error

    def _new_run(self, model: Mapping[str, Any], sql: str) -> _Run:
        """Return a run of a test that begins now.

        Raises:
            UnknownInputs: its result depends on more than tables of the catalogs.
        """
        if model["config"].get("sql_header"):
            raise UnknownInputs("it has a `sql_header`")
        self._require_initial_session()
        prepared = self._prepared(sql)
        inputs = self._inputs_of(prepared)
        published = prepared
        if self.build is not None:
            published = with_published_names(prepared, self.build.name)
        record = PassedTest(
            code=self._code().parts(model, self.connections.project_root, self._variables(model)),
            query=definition_digest(published),
            inputs=inputs.as_json(),
            passed_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        return _Run(prepared, inputs, record)

    def _inputs_of(self, sql: str) -> Inputs:
        self._require_current_reads()
        build = self.build.name if self.build is not None else None
        try:
            return capture_inputs(self.catalogs, sql, None, build)
        except CATALOG_ERRORS as error:
            raise UnknownInputs(f"its tables cannot be read: {error}") from error

    @property
    def _path(self) -> Path:
        return Path(self.config.project_target_path) / FILE

    def _passed_tests(self) -> PassedTests:
        """Return the file of passed tests.

        Raises:
            UnknownInputs: a pass in it may be one of other rows, or of another user.
        """
        profile, root = self.connections.credentials, self.connections.project_root
        catalogs = profile.all_catalogs()
        server = f"{profile.host}:{profile.port}"
        key = catalog_keys([(c.settings(), c.warehouse_path(root)) for c in catalogs], server)
        if key is None:
            raise UnknownInputs(
                "a catalog has `cache-enabled`, so Spark may read old versions of its tables, or "
                "`ambient_credentials`, so its user is unknown"
            )
        owners = [self.connections.owner_of(catalog.name) for catalog in catalogs]
        return PassedTests(self._path, digest([key, owners, self.config.target_name]))


def _check_option(model: Mapping[str, Any]) -> None:
    value = model["config"].get(OPTION)
    if value is not None and not isinstance(value, bool):
        raise CompilationError(
            f"The config of {model['unique_id']} has errors:\n  - "
            + must_be(OPTION, value, "true or false")
        )


def _has_passed(result: agate.Table) -> bool:
    """Return whether a test neither fails nor warns, as dbt reads its only row."""
    names = [name.lower() for name in result.column_names]
    if len(result.rows) != 1 or sorted(names) != sorted(COLUMNS):
        return False
    row = dict(zip(names, result.rows[0], strict=True))
    return row["should_warn"] is False and row["should_error"] is False


def _passed() -> agate.Table:
    from dbt_common.clients.agate_helper import table_from_data

    return table_from_data([dict(zip(COLUMNS, (0, False, False), strict=True))], list(COLUMNS))
