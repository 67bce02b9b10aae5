"""What dbt and macros call while a run stages its models, to publish them at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.meta import AdapterMeta
from dbt.adapters.contracts.connection import AdapterResponse
from dbt_common.events.event_manager_client import get_event_manager
from dbt_common.exceptions import CompilationError
from dbt_common.invocation import get_invocation_id

from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import replaced_name, with_published_names
from dbt.adapters.iceberg_stream.builds.run import TABLE, VIEW, BuildRun
from dbt.adapters.iceberg_stream.builds.settings import (
    IMMEDIATELY,
    build_settings,
    continued_models,
    retried_nodes,
    retried_settings,
    write_state,
)
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config
from dbt.adapters.iceberg_stream.materializations.rebuild import rebuild
from dbt.adapters.iceberg_stream.relation import (
    WRITE_BRANCH,
    IcebergStreamRelation,
    published_name,
    staging_relation,
    table_name,
)

if TYPE_CHECKING:
    import agate

    from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
    from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
    from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials
    from dbt.adapters.iceberg_stream.sql.reads import NameParts

logger = Logger()

# Commands that read relations, so that they see those of a named build.
READING_COMMANDS = {"compile", "show", "run-operation", "generate", "freshness"}
# Commands that build or test relations, and so may publish a build.
BUILD_COMMANDS = {"run", "build", "test", "seed", "snapshot"}
# Its commits are small and never end, and its offsets are snapshots of published tables.
STREAM = "stream"


class BuildHooks(metaclass=AdapterMeta):
    """The part of the adapter that stages models.

    Attributes:
        command: dbt's command.
        build: the build of this command; None if it publishes each model immediately.
    """

    config: Any
    connections: Any
    cache: Any
    command: str
    build: BuildRun | None = None
    _continued: Collection[str] = ()
    Relation: type[IcebergStreamRelation]

    if TYPE_CHECKING:

        @property
        def catalog(self) -> IcebergCatalog:
            """The profile's own catalog."""

        @property
        def catalogs(self) -> Catalogs:
            """The profile's catalogs."""

        def execute(
            self, sql: str, auto_begin: bool = False, fetch: bool = False, limit: int | None = None
        ) -> tuple[AdapterResponse, agate.Table]:
            """Run a statement."""

    def open_build(
        self,
        profile: IcebergStreamCredentials,
        on_published: Callable[[Mapping[Name, int], Iterable[Name]], None],
    ) -> None:
        """Open the build of this command, if the profile, the environment or `--vars` say so.

        Args:
            profile: the profile.
            on_published: see `BuildRun`.
        """
        if self.command not in BUILD_COMMANDS | READING_COMMANDS:
            return
        invocation_id = get_invocation_id()
        target = Path(getattr(self.config, "project_target_path", None) or "target")
        variables = getattr(self.config, "cli_vars", None) or {}
        settings = build_settings(vars(profile), variables, invocation_id)
        retried = _retried_folder(target, Path(getattr(self.config, "project_root", None) or "."))
        if retried is not None:
            self._continued = continued_models(retried)
            keep = timedelta(days=profile.keep_builds_days)
            settings = retried_settings(retried, keep) or settings
        if settings is None or (self.command in READING_COMMANDS and not settings.continues):
            return
        note = partial(write_state, target, settings, invocation_id)
        again = partial(rebuild, settings.name, getattr(self.config, "args", None), target)
        self.build = BuildRun(
            settings,
            invocation_id,
            lambda: self.catalog,
            on_published,
            note,
            again if profile.rebuild_on_conflict else None,
            lambda: self.catalogs,
            partial(_nodes, None if retried is None else retried_nodes(retried)),
        )
        # dbt asks the instance for its class of relations.
        self.Relation = staging_relation(self._identifier, self.Relation)
        self.connections.nodes.read_as = self._read_as
        # What only reads, such as `dbt show --inline`, has no nodes that must succeed.
        if self.command in BUILD_COMMANDS:
            listen(self.build.on_event)

    def _identifier(self, database: str | None, namespace: str, identifier: str) -> str:
        """Return under which identifier this command reads and writes a relation."""
        if self.build is None or not self.catalogs.is_own(database):
            return identifier
        return self.build.identifier(namespace, identifier)

    def _read_as(self, database: str, namespace: str, identifier: str) -> NameParts:
        """Return the name by which a node reads its own table; bring a staged one up to date."""
        is_own = self.command in BUILD_COMMANDS and self.catalogs.is_own(database)
        if self.build is not None and is_own:
            self.build.restage((namespace, identifier))
        return database, namespace, self._identifier(database, namespace, identifier)

    @contextmanager
    def connection_named(self, name: str, *arguments: Any, **options: Any) -> Iterator[None]:
        """Open a connection; publish the build at the end of the last one of a run."""
        with super().connection_named(name, *arguments, **options):  # type: ignore[misc]
            # dbt opens this connection before the first node, after the last one, and when it
            # cancels nodes.
            ends = name == "master" and self.command in BUILD_COMMANDS
            has_failed = True
            try:
                yield
                has_failed = False
            finally:
                if ends and self.build is not None:
                    self._end_build(self.build, has_failed)

    def _end_build(self, build: BuildRun, has_failed: bool) -> None:
        error = sys.exc_info()[1]
        if has_failed:
            # Such as an `on-run-end` that does not compile. After Ctrl-C, dbt comes back.
            if isinstance(error, Exception):
                build.interrupt(f"ended with an error ({str(error).strip()})")
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            build.interrupt()
        # With --fail-fast, dbt opens this connection once more when it cancels the other nodes.
        elif error is None:
            build.finish()
            if not getattr(self.config.args, "write_json", True):
                build.raise_error()

    def deferred_call(self, sql: str, fetch: bool) -> tuple[AdapterResponse, agate.Table] | None:
        """Check a statement of a build, and defer a procedure until its table is published.

        Args:
            sql: one or more statements.
            fetch: whether the caller needs rows.

        Returns:
            The response to a deferred call; None if the statement is to be run now.

        Raises:
            BuildError: the statement writes to a published relation, or its rows cannot wait.
        """
        if self.build is None:
            return None
        self.build.check_statement(sql)
        if not self.build.waits(sql):
            return None
        if fetch:
            raise BuildError(
                "A procedure is called for a table that this run stages. It runs after the build "
                f"is published, so it has no rows now. Call it in a hook. The statement:\n{sql}"
            )
        from dbt_common.clients.agate_helper import empty_table

        self.build.deferred.add(partial(self.execute, sql), sql)
        return AdapterResponse("CALL after the build is published"), empty_table()

    @available.parse(lambda *a, **k: False)
    def continues_batches(self, unique_id: str) -> bool:
        """Return whether this command is a `dbt retry` that runs only a model's failed batches.

        dbt gives the retry the options of the first command. With `--full-refresh`, the retry's
        first batch would replace the table, and with it the batches that had succeeded.

        Args:
            unique_id: the model's.
        """
        return unique_id in self._continued

    @available.parse(lambda *a, **k: False)
    def is_building(self) -> bool:
        """Return whether this run stages its models."""
        return self.build is not None

    @available.parse(lambda *a, **k: "")
    def view_query(self, relation: BaseRelation, sql: str) -> str:
        """Return the query of a view, which reads staged relations only if it is staged itself."""
        if self.build is None or table_name(relation) != published_name(relation):
            return sql
        if missing := self.build.unpublished(sql):
            raise CompilationError(
                f"The view {relation} is published at once (`publish: {IMMEDIATELY}`), but reads "
                f"{', '.join(missing)}, which the build `{self.build.name}` has not published yet. "
                "Remove the config, so that the view is published with the build."
            )
        return with_published_names(sql, self.build.name)

    @available.parse(lambda *a, **k: {})
    def view_properties(self, relation: BaseRelation) -> Mapping[str, str]:
        """Return the properties that a view gets because it is staged."""
        if self.build is None or table_name(relation) == published_name(relation):
            return {}
        return self.build.view_properties(published_name(relation))

    @available.parse_none
    def stage_model(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Stage a model's relation, if this run publishes its models at its end."""
        self._clear_leftovers(relation)
        config = model["config"]
        if self.build is None:
            return
        if config.get("publish") == IMMEDIATELY:
            self._require_published(relation, model)
            return
        if config.get("materialized") == STREAM:
            return
        if (branch := getattr(relation, "branch", None)) is not None:
            raise CompilationError(
                f"{model['unique_id']} writes to the branch `{branch}` (`{WRITE_BRANCH}`), which a "
                "build does not publish. Remove the config in runs with `publish: atomic`, or set "
                f"`publish: {IMMEDIATELY}` for this model."
            )
        if not self.catalogs.is_own(relation.database):
            raise CompilationError(
                f"A build publishes tables of the catalog `{self.catalog.name}` in one commit, and "
                f"{model['unique_id']} is in the catalog `{relation.database}`. Set `publish: "
                f"{IMMEDIATELY}` for this model, so that each run writes it at once, or exclude it."
            )
        name = published_name(relation)
        properties: Mapping[str, str] = {}
        if not relation.is_view:
            self.catalog.check_write(name)
            properties = check_model_config(model).properties
        exists = self.build.stage(name, VIEW if relation.is_view else TABLE, properties)
        if exists is False:
            # The published relation stays as it is, so the model has nothing to replace.
            self.cache.drop(relation)

    def _require_published(self, relation: BaseRelation, model: Mapping[str, Any]) -> None:
        """Check that a model with `publish: immediately` was not staged by an earlier command."""
        if self.build is not None and table_name(relation) != published_name(relation):
            raise CompilationError(
                f"{model['unique_id']} has `publish: {IMMEDIATELY}`, but an earlier command has "
                f"staged {'.'.join(published_name(relation))} in the build `{self.build.name}`. "
                "Publish or discard the build first, or remove the config."
            )

    def _clear_leftovers(self, relation: BaseRelation) -> None:
        """Finish what a killed run began: see `builds/leftovers.py`."""
        # The cache lists them, so that the catalog is asked only if there are some.
        listed = self.cache.get_relations(relation.database, relation.schema)
        name = published_name(relation)
        if not any(replaced_name(str(other.identifier)) == name[1] for other in listed):
            return
        from dbt.adapters.iceberg_stream.builds.leftovers import clear_leftovers

        catalog = self.catalogs.get(relation.database)
        for leftover in clear_leftovers(catalog, name, self.catalogs):
            fate = "is its new version" if leftover.is_missing else "was dropped"
            logger.warning(
                f"A run was killed while it replaced {'.'.join(name)}: "
                f"{'.'.join(leftover.name)}, which it has left, {fate}"
            )
            path = {"identifier": leftover.name[1]}
            self.cache.drop(relation.incorporate(path=path, type=leftover.kind))
            if leftover.is_missing:
                self.cache.add(relation.incorporate(type=leftover.kind))

    def when_published(self, relation: BaseRelation, action: Callable[[], None]) -> None:
        """Run an action on a relation: after the build is published if the relation is staged.

        Args:
            relation: the relation.
            action: the action.
        """
        if self.build is not None and table_name(relation) != published_name(relation):
            self.build.deferred.add(action)
        else:
            action()


def _retried_folder(target: Path, project_root: Path) -> Path | None:
    """Return where `dbt retry` reads the results of a command, whose name and arguments it has.

    Args:
        target: dbt's target folder.
        project_root: the project's folder.

    Returns:
        The folder; None if dbt's command is not a retry.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.command.name != "retry":
        return None
    state = context.params.get("state")
    return project_root / state if state else target


def _nodes(retried: Collection[str] | None) -> tuple[Collection[str], Collection[str]]:
    """Return the nodes that dbt's command is to run, and all of the project, by unique ids.

    Args:
        retried: what `dbt retry` runs; None if the command is another one.
    """
    # No call that adapters get has them.
    from dbt.selected_resources import SELECTED_RESOURCES

    context = click.get_current_context(silent=True)
    manifest = (context.obj or {}).get("manifest") if context is not None else None
    known = manifest and [*manifest.nodes, *manifest.unit_tests, *manifest.functions]
    return (SELECTED_RESOURCES if retried is None else retried), known or []


def listen(callback: Callable[[Any], None]) -> None:
    """Call a function with each of dbt's events."""
    get_event_manager().add_callback(callback)
