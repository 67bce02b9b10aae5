"""Publishes a build: all its tables in one commit, then its views."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from pyiceberg.table.update import SetPropertiesUpdate
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from dbt.adapters.iceberg_stream.builds.commands import command_records, without_relations
from dbt.adapters.iceberg_stream.builds.errors import BuildConflict, BuildError
from dbt.adapters.iceberg_stream.builds.names import check_build_name, staged_name
from dbt.adapters.iceberg_stream.builds.plan import (
    PARALLEL,
    Plan,
    creation,
    is_same,
    make_plan,
    mark,
    state_of,
)
from dbt.adapters.iceberg_stream.builds.replaced import (
    Replacement,
    drop_abandoned,
    publish_view,
    replaced_conflicts,
)
from dbt.adapters.iceberg_stream.builds.staged import (
    StagedTable,
    load_staged,
    metadata_files,
    plan_discards,
    remove_files,
)
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog, Name
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.drop import Drop, run_drops

logger = Logger()

ATTEMPTS = 10
# How often models are built again whose published tables change meanwhile.
REBUILDS = 3


@dataclass(frozen=True)
class Publication:
    """What a build has published.

    Attributes:
        build: name of the build.
        tables: snapshot ids of the tables that changed, by name.
        views: the views.
        unchanged: tables that the build did not change.
        timestamp_ms: time of the snapshots in milliseconds since 1970 (UTC). Queries `timestamp as
            of` it read all tables as published.
        seconds: how long it took.
    """

    build: str
    tables: dict[Name, int]
    views: list[Name]
    unchanged: list[Name]
    timestamp_ms: int
    seconds: float


def publish(
    catalog: IcebergCatalog,
    build: str,
    relations: Iterable[tuple[Name, str]],
    catalogs: Catalogs | None = None,
) -> Publication:
    """Publish relations of a build, and drop their staged versions.

    All tables change in one commit. Readers may find a new table of a catalog on a server empty
    for the moment before the commit, and views change one by one after it.

    Args:
        catalog: the catalog, as the user who publishes.
        build: name of the build.
        relations: published names and kinds (`table` or `view`) of the build's relations.
        catalogs: those of the profile, whose other tables may reference files of the build; only
            `catalog` by default.

    Raises:
        BuildConflict: other writers changed published tables; nothing was published.
        BuildError: it is no build, a table was staged, but never built, or another process
            published or discarded the build meanwhile, and nothing was published; or the tables
            were published, and a view was not.
        CatalogError: the catalog refuses; nothing was published.
        CommitStateUnknown: the catalog did not answer; publish again.
    """
    check_build_name(build)
    start = time.monotonic()
    relations = list(relations)
    names = [name for name, kind in relations if kind == "table"]
    views = [name for name, kind in relations if kind == "view"]
    kinds = {
        (namespace, identifier): kind
        for namespace in {name[0] for name, _ in relations}
        for identifier, kind in catalog.relations(namespace)
    }
    staged = _load_all(catalog, build, names)
    staged_views = {name: catalog.metadata(staged_name(name, build)) for name in views}
    _check_whole(build, relations, staged, staged_views)
    # Of models that failed at first and now have another name, or none.
    empty = [table for table in staged if table.is_empty]
    if len(empty) < len(relations):
        staged = [table for table in staged if not table.is_empty]
    else:
        empty = []
    _check_built(build, staged)
    replacement = Replacement(catalog, build, staged, staged_views)
    try:
        for table in staged:
            drop_abandoned(catalog, table)
        if conflicts := replaced_conflicts(catalog, staged, staged_views, kinds):
            raise BuildConflict(build, conflicts)
        plan, now = _commit(catalog, build, staged, replacement)
    except BaseException:
        replacement.undo()
        raise
    name = None
    try:
        _forget_relations(catalog, staged, staged_views, build)
        for name, view in staged_views.items():
            if view is not None:
                publish_view(catalog, build, name, view, catalogs)
    except CatalogError as error:
        rest = f", but not the view {'.'.join(name)}" if name else ""
        raise BuildError(
            f"The tables of the build `{build}` are published{rest}: {error}\n"
            f"Run `iceberg-stream publish {build}` for the rest. If there is no such build any "
            "more, build the views again."
        ) from error
    _clean_up(catalog, [*staged, *empty], plan, catalogs)
    seconds = time.monotonic() - start
    return Publication(build, plan.snapshots, views, plan.unchanged, now, seconds)


def _load_all(catalog: IcebergCatalog, build: str, names: Sequence[Name]) -> list[StagedTable]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        loaded = pool.map(lambda name: load_staged(catalog, name, build), names)
        return [staged for staged in loaded if staged is not None]


def _check_whole(
    build: str,
    relations: Iterable[tuple[Name, str]],
    tables: Collection[StagedTable],
    views: Mapping[Name, Metadata | None],
) -> None:
    """Check that all relations of a build are staged, as far as its last command recorded them."""
    staged = {table.name for table in tables} | {n for n, view in views.items() if view is not None}
    metadata = [*(table.metadata for table in tables), *filter(None, views.values())]
    records = command_records(metadata)
    recorded = set(records[-1].relations if records else ())
    if missing := sorted((recorded | {name for name, _ in relations}) - staged):
        if not recorded:
            raise _gone(build)
        raise BuildError(
            f"The build `{build}` is not complete: {', '.join(map('.'.join, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} no longer staged, because somebody dropped "
            "them or interrupted `iceberg-stream discard`. Nothing was published. Run the models "
            "again in this build, or discard it."
        )


def _forget_relations(
    catalog: IcebergCatalog,
    tables: Sequence[StagedTable],
    views: Mapping[Name, Metadata | None],
    build: str,
) -> None:
    """Remove the list of relations from records: they are published, and dropped one by one."""
    for staged in tables:
        if not without_relations(staged.metadata):
            continue
        # The commit that has published it has changed it.
        now = load_staged(catalog, staged.name, build)
        if now is not None and (records := without_relations(now.metadata)):
            # Who changes it now has another record, or drops it.
            with suppress(CommitConflict):
                catalog.commit(now.table, (), (SetPropertiesUpdate(updates=records),))
    for name, metadata in views.items():
        if metadata is not None and (records := without_relations(metadata)):
            with suppress(CommitConflict):
                catalog.set_view_properties(staged_name(name, build), records)


def _check_built(build: str, tables: Sequence[StagedTable]) -> None:
    not_built = [".".join(s.name) for s in tables if s.is_empty]
    recreated = [".".join(s.name) for s in tables if s.is_recreated]
    if not_built:
        raise BuildError(
            f"The build `{build}` is incomplete: {', '.join(not_built)} failed before it had "
            "rows. Nothing was published. Run the model again in this build, or discard the build."
        )
    if recreated:
        raise BuildError(
            f"The build `{build}` cannot be published: a hook or a macro dropped and created "
            f"{', '.join(recreated)} again, which only the model itself may do. Nothing was "
            "published. Set `publish: immediately` for the model, or change the hook."
        )


def _commit(
    catalog: IcebergCatalog,
    build: str,
    tables: Sequence[StagedTable],
    replacement: Replacement,
) -> tuple[Plan, int]:
    """Commit all tables at once, again if another writer is faster or the answer is lost."""
    try:
        return _commit_attempts(catalog, build, tables, replacement)
    except (CatalogError, OSError) as error:
        if _reloaded(catalog, tables) is None:
            raise _gone(build) from error
        raise


def _reloaded(catalog: IcebergCatalog, tables: Sequence[StagedTable]) -> list[StagedTable] | None:
    """Return staged tables as they are now; None if one is gone."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        now = list(pool.map(lambda old: load_staged(catalog, old.name, old.build), tables))
    pairs = zip(tables, now, strict=True)
    same = [new for old, new in pairs if new is not None and is_same(new, old)]
    return same if len(same) == len(tables) else None


def _gone(build: str) -> BuildError:
    return BuildError(
        f"The build `{build}` was published or discarded by another process at the same time. "
        "This one published nothing."
    )


def _commit_attempts(
    catalog: IcebergCatalog,
    build: str,
    tables: Sequence[StagedTable],
    replacement: Replacement,
) -> tuple[Plan, int]:
    for attempt in Retrying(
        retry=retry_if_exception_type((CommitConflict, CommitStateUnknown)),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    ):
        with attempt:
            if attempt.retry_state.attempt_number > 1:
                # The lost attempt may have published them.
                if (reloaded := _reloaded(catalog, tables)) is None:
                    raise _gone(build)
                tables = reloaded
            plan, now = make_plan(catalog, build, tables)
            try:
                if plan.conflicts:
                    # What is built again would read the appended tables without the others' rows.
                    raise BuildConflict(build, [*plan.conflicts, *plan.behind])
                marks = [mark(replacement.make_room(s), number) for s, number in plan.marks]
                plan.commits += [creation(catalog, staged, build, now) for staged in plan.new]
                if plan.commits:
                    catalog.commit_all([*plan.commits, *marks])
            except (CommitConflict, BuildConflict):
                _discard_rebased(catalog, plan)
                raise
    return plan, now


def _discard_rebased(catalog: IcebergCatalog, plan: Plan) -> None:
    """Remove the manifests of commits that were not made.

    A request that was sent twice, of which the first answer was lost, is refused although it was
    made.
    """
    for committer in plan.rebased:
        table = catalog.load(committer.name)
        snapshots = [] if table is None else table.metadata.get("snapshots") or []
        if plan.snapshots[committer.name] not in {s["snapshot-id"] for s in snapshots}:
            committer.discard()


def _clean_up(
    catalog: IcebergCatalog,
    tables: Sequence[StagedTable],
    plan: Plan,
    catalogs: Catalogs | None,
) -> None:
    """Drop the staged tables; their data is the published tables' now.

    Only what an earlier attempt has published, or what was rebased, has files that may be removed
    and that another table may have. What a run of the build has changed since stays staged.
    """
    with_files = {committer.name for committer in plan.rebased} | plan.earlier

    def drop(staged: StagedTable) -> Drop | None:
        current = load_staged(catalog, staged.name, staged.build)
        if current is None or not is_same(current, staged) or state_of(current) != state_of(staged):
            return None
        (drop,) = plan_discards([current])
        drop.in_this_version = True
        if staged.name in with_files:
            return drop
        drop.unregister(catalog)
        if drop.table is not None:
            remove_files(current, metadata_files(current))
        return None

    try:
        with ThreadPoolExecutor(PARALLEL) as pool:
            shared = [drop for drop in pool.map(drop, tables) if drop is not None]
        run_drops(catalog, shared, catalogs)
    except (CatalogError, OSError) as error:
        # Such as another process that drops them, too.
        build = tables[0].build
        logger.warning(f"The build `{build}` is published, but not dropped: {reason(error)}")


def publish_or_rebuild(
    catalog: IcebergCatalog,
    build: str,
    relations: Mapping[Name, str],
    catalogs: Catalogs,
    rebuild: Callable[[Collection[Name], Collection[Name]], None] | None,
) -> Publication:
    """Publish a build, and build models again whose published tables change meanwhile.

    Args:
        catalog: the catalog of the build.
        build: name of the build.
        relations: published names and kinds of its relations.
        catalogs: catalogs whose tables may reference files of the build.
        rebuild: builds models again, from the published names of their tables and of all relations
            of the build; None if a conflict with another writer is an error.

    Raises:
        The errors of `publish`; BuildConflict if tables change again and again.
    """
    for rebuilds_left in reversed(range(REBUILDS + 1)):
        try:
            return publish(catalog, build, relations.items(), catalogs)
        except BuildConflict as conflict:
            if rebuild is None or not rebuilds_left:
                raise
            logger.info(
                f"{conflict.reasons}\nTheir models are built again, then the build is published."
            )
            rebuild(conflict.names, relations)
    raise AssertionError("the last conflict is raised")


def published_text(publication: Publication) -> str:
    """Return a sentence about a published build.

    Args:
        publication: what was published.
    """
    count = len(publication.tables)
    parts = [f"{count} table{'' if count == 1 else 's'} in one commit"] if count else []
    if views := len(publication.views):
        parts.append(f"{views} view{'' if views == 1 else 's'}")
    if unchanged := len(publication.unchanged):
        parts.append(f"{unchanged} unchanged")
    at = datetime.fromtimestamp(publication.timestamp_ms / 1000, tz=timezone.utc)
    return (
        f"Published the build `{publication.build}` in {publication.seconds:.1f} s: "
        f"{', '.join(parts)}. To read all tables as published now, add `timestamp as of "
        f"'{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z'`."
    )
