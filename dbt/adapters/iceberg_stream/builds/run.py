"""One command of dbt that stages what it builds, and publishes it at its end."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.builds.commands import (
    CommandRecord,
    record_properties,
    unresolved,
)
from dbt.adapters.iceberg_stream.builds.deferred import Deferred
from dbt.adapters.iceberg_stream.builds.errors import BuildError
from dbt.adapters.iceberg_stream.builds.names import (
    node_titles,
    split_staged,
    staged_identifier,
    staged_name,
)
from dbt.adapters.iceberg_stream.builds.nodes import HOOK, CommandNodes
from dbt.adapters.iceberg_stream.builds.relations import StagedRelations
from dbt.adapters.iceberg_stream.builds.settings import BuildSettings
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, one_catalog
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.sql.quoting import quote

logger = Logger()

TABLE, VIEW = "table", "view"


class BuildRun:
    """The build of one command: which relations it has staged, and which nodes failed.

    Attributes:
        deferred: what runs after the build is published.

    Args:
        settings: the build.
        command: dbt's id of the command.
        catalog: returns the profile's catalog.
        on_published: is called after the build is published, with its tables and their snapshots,
            and with its views.
        note: notes the build for `dbt retry`, whether the command was interrupted, and whether the
            build has relations after it.
        rebuild: as for `publish_or_rebuild`.
        catalogs: returns the profile's catalogs, whose tables may reference files of the build;
            only that of `catalog` by default.
        nodes: returns the unique ids of all nodes that the command is to run, and of all nodes of
            the project; none by default.
    """

    def __init__(
        self,
        settings: BuildSettings,
        command: str,
        catalog: Callable[[], IcebergCatalog],
        on_published: Callable[[Mapping[Name, int], Iterable[Name]], None],
        note: Callable[[bool, bool], None],
        rebuild: Callable[[Collection[Name], Collection[Name]], None] | None = None,
        catalogs: Callable[[], Catalogs] | None = None,
        nodes: Callable[[], tuple[Collection[str], Collection[str]]] = lambda: ((), ()),
    ) -> None:
        self.settings = settings
        self._nodes = CommandNodes(command, nodes)
        self._catalog = catalog
        self._on_published = on_published
        self._note = note
        self._rebuild = rebuild
        self._catalogs = catalogs or (lambda: one_catalog(catalog()))
        self._relations = StagedRelations(settings, catalog)
        self._built: set[Name] = set()
        # What the views replace, by their published names; see `staged.record`.
        self._records: dict[Name, str] = {}
        self._locks: defaultdict[Name, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.RLock()
        # The staged relations that have the record of this command.
        self._recorded: dict[Name, str] = {}
        # Records of commands that a staged view has, and that its next version must have.
        self._kept: dict[Name, dict[str, str]] = {}
        self._error: Exception | None = None
        self.deferred = Deferred(settings.name)

    @property
    def name(self) -> str:
        """Name of the build."""
        return self.settings.name

    def identifier(self, namespace: str, identifier: str) -> str:
        """Return under which identifier this command reads and writes a relation.

        Args:
            namespace: the relation's namespace.
            identifier: its published identifier.
        """
        if (namespace, identifier) in self._relations.in_namespace(namespace):
            return staged_identifier(identifier, self.name)
        return identifier

    def kinds(self, namespace: str, relations: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return a namespace's relations as this command sees them.

        Args:
            namespace: the namespace.
            relations: identifiers and kinds that the catalog lists.
        """
        staged = self._relations.in_namespace(namespace)
        own = {name[1]: kind for name, kind in staged.items() if name[0] == namespace}
        published = {name: kind for name, kind in relations if split_staged(name) is None}
        return list({**published, **own}.items())

    def stage(self, name: Name, kind: str, properties: Mapping[str, str]) -> bool | None:
        """Stage a relation before its model is built.

        Args:
            name: namespace and identifier of the published relation.
            kind: `table` or `view`.
            properties: properties of a new table that cannot be changed later.

        Returns:
            Whether a staged relation of this kind exists now; None if this command has staged it
            before.

        Raises:
            BuildError: the catalog cannot commit several tables at once.
            CatalogError: the catalog refuses.
        """
        catalog = self._catalog()
        with self._locks[name]:
            if name in self._built:
                return None
            if not catalog.commits_together:
                raise BuildError(
                    f"The catalog `{catalog.name}` cannot commit several tables at once, which "
                    "`publish: atomic` and builds need. Set `publish: immediately` and remove "
                    "`build`. `dbt debug` shows what the catalog can do."
                )
            if not self._built:
                self._require_retried()
                self._note(False, False)
            existing = self._relations.in_namespace(name[0]).get(name)
            if existing is not None:
                self._put_back(catalog, name)
            stage = self._stage_view if kind == VIEW else self._stage_table
            exists = stage(catalog, name, existing, properties)
            with self._lock:
                self._relations.add(name, kind)
                # Another command may replace what it has staged, and the record with it.
                if kind == TABLE and not self._recorded.keys() & self._built:
                    self._recorded[name] = kind
                    self._store(self._nodes.record(has_ended=False))
                self._built.add(name)
            return exists

    def _require_retried(self) -> None:
        """Check that the build that `dbt retry` continues still exists."""
        if self.settings.has_staged and not self._relations.all():
            raise BuildError(
                f"`dbt retry` cannot continue the build `{self.name}`, because it was published or "
                "discarded. Run the original command again."
            )

    def restage(self, name: Name) -> None:
        """Stage a table again if the published one has changed since an earlier command staged it.

        Its model's queries read it before the model is built.

        Args:
            name: namespace and identifier of the published table.

        Raises:
            CatalogError: the catalog refuses.
        """
        if not self.settings.continues:
            return
        with self._locks[name]:
            if name in self._built or self._relations.in_namespace(name[0]).get(name) != TABLE:
                return
            catalog = self._catalog()
            self._put_back(catalog, name)
            if catalog.load(name, history=False) is not None:
                self._stage_table(catalog, name, TABLE, {})

    def _stage_table(
        self, catalog: IcebergCatalog, name: Name, existing: str | None, properties: Any
    ) -> bool:
        from dbt.adapters.iceberg_stream.builds.staged import stage_table

        records = None
        if existing == VIEW:
            records = record_properties(catalog.metadata(staged_name(name, self.name)))
            catalog.unregister(staged_name(name, self.name))
        continues, catalogs = self.settings.continues, self._catalogs()
        return stage_table(catalog, name, self.name, properties, continues, catalogs, records)

    def _stage_view(
        self, catalog: IcebergCatalog, name: Name, existing: str | None, _: Any
    ) -> bool:
        from dbt.adapters.iceberg_stream.builds.staged import load_staged, plan_discards, record
        from dbt.adapters.iceberg_stream.tables.drop import run_drops

        if existing is not None:
            self._kept[name] = record_properties(catalog.metadata(staged_name(name, self.name)))
        if existing == TABLE and (staged := load_staged(catalog, name, self.name)) is not None:
            run_drops(catalog, plan_discards([staged]), self._catalogs())
        # Of a view in its place nothing is lost.
        table = catalog.load(name, history=False)
        self._records[name] = record(None if table is None else table.metadata)
        return existing == VIEW

    def view_properties(self, name: Name) -> Mapping[str, str]:
        """Return the properties that a view needs for `publish`; none if it is not staged.

        Args:
            name: its published name.
        """
        from dbt.adapters.iceberg_stream.builds.staged import REPLACES

        if name not in self._records:
            return {}
        with self._lock:
            is_first = not self._recorded.keys() & self._built
            if is_first:
                self._recorded[name] = VIEW
        own = self._nodes.record(has_ended=False).as_property() if is_first else {}
        return {REPLACES: self._records[name], **self._kept.get(name, {}), **own}

    def _put_back(self, catalog: IcebergCatalog, name: Name) -> None:
        """Put back what an interrupted `publish` has dropped for a relation."""
        from dbt.adapters.iceberg_stream.builds.replaced import put_back, restore, unmark
        from dbt.adapters.iceberg_stream.builds.staged import load_staged

        metadata = catalog.metadata(staged_name(name, self.name))
        if metadata is None:
            return
        table = load_staged(catalog, name, self.name) if "versions" not in metadata else None
        if table is not None:
            restore(catalog, table, metadata)
        else:
            put_back(catalog, name, metadata)
        unmark(catalog, name, self.name, metadata)

    def waits(self, sql: str) -> bool:
        """Return whether a statement calls a procedure for a relation that is staged.

        Procedures take published names, as hooks write them, so they run after the build is
        published.

        Args:
            sql: one statement.
        """
        from dbt.adapters.iceberg_stream.sql.statements import called_names

        own = self._catalog().name
        return any(
            (len(name) < 3 or name[0] == own) and self._stages(name) for name in called_names(sql)
        )

    def check_statement(self, sql: str) -> None:
        """Check that statements do not write to the published version of a staged relation.

        Args:
            sql: one or more statements.

        Raises:
            BuildError: one does.
        """
        from dbt.adapters.iceberg_stream.sql.statements import classify, split

        for statement in split(sql):
            target = classify(statement).target or ()
            if len(target) == 3 and target[0].lower() != self._catalog().name.lower():
                continue
            if self._stages(target):
                raise BuildError(
                    f"A statement writes to {'.'.join(target)}, which this run stages in the "
                    f"build `{self.name}`: readers would see the change before the build is "
                    "published. Write `{{ this }}` or `{{ ref(…) }}` instead of the name. The "
                    f"statement:\n{statement}"
                )

    def _stages(self, name: Sequence[str]) -> bool:
        """Return whether a relation is staged, by this command or an earlier one of the build."""
        if len(name) < 2:
            return False
        return (name[-2], name[-1]) in self._relations.in_namespace(name[-2])

    def unpublished(self, sql: str) -> list[str]:
        """Return the staged relations that a query reads, and that readers do not have yet.

        Args:
            sql: the query, with quoted names as the adapter renders them.
        """
        return [
            ".".join(name)
            for name in sorted(self._relations.known)
            if quote(staged_identifier(name[1], self.name)) in sql
            and self._catalog().metadata(name) is None
        ]

    def on_event(self, message: Any) -> None:
        """Follow dbt's events: which nodes failed, and whether the command ends with an error."""
        if message.info.name == "NodeStart":
            if self._nodes.begin(message.data.node_info.unique_id) and self.settings.continues:
                self._record_start()
        elif message.info.name == "NodeFinished":
            self._nodes.end(message.data.node_info.unique_id, message.data.run_result.status)
        elif message.info.name == "LogHookEndLine":
            self._nodes.end(f"{HOOK}{message.data.statement}", message.data.status)
        elif _results_written(message):
            self.raise_error()

    def _record_start(self) -> None:
        """Record the start of a command that may stage nothing, such as `dbt test`."""
        with self._lock:
            relations = {} if self._recorded else self._relations.all()
            self._recorded.update(sorted(relations.items())[:1])
            if self._recorded:
                self._store(self._nodes.record(has_ended=False))

    def raise_error(self) -> None:
        """Raise the error of `finish`, after dbt has written its results; dbt then fails.

        Raises:
            DbtRuntimeError: the build could not be published.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error if isinstance(error, DbtRuntimeError) else DbtRuntimeError(str(error))

    def finish(self) -> None:
        """End the command: publish the build, unless it is named or a node failed.

        Errors are kept for `raise_error`.
        """
        if not self._nodes.have_run:
            return  # such as `dbt run-operation`, or a selection without nodes
        try:
            self._finish()
        except (DbtRuntimeError, OSError) as error:
            self.deferred.warn_of_calls()
            self._error = error

    def interrupt(self, event: str = "was interrupted") -> None:
        """End the command before its end: nothing is published.

        Args:
            event: what happened to the run.
        """
        self.deferred.warn_of_calls()
        if self._recorded:
            self._store(self._nodes.record(False, self._others()))
        if self._built:
            self._note(True, True)
            logger.warning(
                f"The build `{self.name}` was not published, because the run {event}. "
                f"Its staged relations stay. Run the same command again with "
                f"ICEBERG_STREAM_BUILD={self.name} to continue it, or `iceberg-stream discard "
                f"{self.name}`."
            )

    def _finish(self) -> None:
        relations = self._relations.all()
        if not relations:
            return
        others = self._others()
        record = self._nodes.record(True, others, relations)
        failed, planned = unresolved([*others, record])
        if self.settings.publishes:
            failed += planned
            if not failed:
                self._publish(relations, record)
                return
        self.deferred.warn_of_calls()
        # A view whose statement failed is not there.
        relations = {n: kind for n, kind in relations.items() if self._is_staged(n)}
        # Also of a command that has staged nothing, such as a retry of tests.
        self._note(False, bool(relations))
        # One of each namespace: another command may drop a namespace.
        namespaces = {name[0] for name in self._recorded}
        for name, kind in sorted(relations.items(), key=lambda item: (item[1] != TABLE, item)):
            if name[0] not in namespaces:
                namespaces.add(name[0])
                self._recorded[name] = kind
        self._store(record)
        counts = {0: "no staged relation", 1: "one staged relation"}
        count = counts.get(len(relations), f"{len(relations)} staged relations")
        if failed:
            again = "`dbt retry` after a correction"
            if all(node.startswith(HOOK) for node in failed):
                # dbt retries nodes only.
                again = (
                    f"the same command after a correction with ICEBERG_STREAM_BUILD={self.name}, "
                    f"then `iceberg-stream publish {self.name}`"
                )
            logger.warning(
                f"The build `{self.name}` was not published: {_list(node_titles(failed))} "
                f"failed or were not run. The build has {count}. Run {again}; or "
                f"`iceberg-stream diff --build {self.name}` to see what changed, or "
                f"`iceberg-stream discard {self.name}`."
            )
        else:
            logger.info(
                f"The build `{self.name}` has {count}. `iceberg-stream diff --build {self.name}` "
                f"shows what changed, `iceberg-stream publish {self.name}` publishes it."
            )

    def _is_staged(self, name: Name) -> bool:
        catalog = self._catalog()
        return catalog.metadata(staged_name(name, self.name), history=False) is not None

    def _publish(self, relations: Mapping[Name, str], record: CommandRecord) -> None:
        from dbt.adapters.iceberg_stream.builds.build import discard_abandoned
        from dbt.adapters.iceberg_stream.builds.publish import publish_or_rebuild, published_text

        catalog = self._catalog()
        try:
            publication = publish_or_rebuild(
                self._catalog(), self.name, relations, self._catalogs(), self._rebuild
            )
        except (DbtRuntimeError, OSError):
            # Another command may complete the build, and `publish` then asks how this one ended.
            self._store(record)
            raise
        self._relations.clear()
        logger.info(published_text(publication))
        on_published = partial(self._on_published, publication.tables, publication.views)
        self.deferred.run(on_published)
        namespaces = {name[0] for name in relations}
        try:
            abandoned = discard_abandoned(catalog, namespaces, self.settings.keep, self._catalogs())
        except (DbtRuntimeError, OSError) as error:
            # Such as another process that publishes or discards one of them at this moment.
            logger.warning(f"Builds that were abandoned could not be discarded: {error}")
            return
        for build in abandoned:
            logger.info(f"Discarded the build `{build}`, which was abandoned")

    def _others(self) -> list[CommandRecord]:
        """Return the records of the other commands of the build."""
        from dbt.adapters.iceberg_stream.builds.build import list_builds, load_records

        if not self.settings.continues:
            return []
        builds = {build.name: build for build in list_builds(self._catalog())}
        if self.name not in builds:
            return []  # it has staged nothing yet, or another process has published it
        records = load_records(self._catalog(), builds[self.name])
        return [record for record in records if record.command != self._nodes.command]

    def _store(self, record: CommandRecord) -> None:
        from dbt.adapters.iceberg_stream.builds.build import store_record

        try:
            for name, kind in self._recorded.items():
                store_record(self._catalog(), self.name, name, kind, record)
        except CatalogError as error:
            logger.warning(
                f"The catalog refused to store in the build `{self.name}` whether this run ended "
                f"well, so `iceberg-stream publish` does not check it: {error}"
            )


def _results_written(message: Any) -> bool:
    is_written = message.info.name == "ArtifactWritten"
    return is_written and message.data.artifact_type == "RunExecutionResult"


def _list(names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
