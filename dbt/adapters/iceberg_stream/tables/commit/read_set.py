"""The read set of a statement: it is retried only while its sources have not changed.

Article on the write contract, "Conflict Resolution": a retry that runs the query again may return
other rows if its sources have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs, QualifiedName
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import (
    Metadata,
    became_current,
    current_since,
    current_snapshot,
    row_schema,
)
from dbt.adapters.iceberg_stream.sql.reads import CURRENT, AsOf, NameParts, Reads

Views = Mapping[str, Reads | None]
CachedViews = Mapping[str, "ReadSet | None"]


# The operation of snapshots that change files, and no row (table spec, "Snapshots").
COMPACTION = "replace"


class Version(NamedTuple):
    """The version of a table or view that a statement reads.

    A relation that was dropped and created again has another one.

    Attributes:
        uuid: of the table or view.
        fixed: the snapshots of tags, branches and ids, or a view's version.
        schema: of the table; None for a view.
        current: the current snapshot, if the statement reads it.
        moment: when that became current, or how often a view was changed.
        updated: when the table was changed; its rows may be the same since.
    """

    uuid: str
    fixed: tuple[int | None, ...]
    schema: Any
    current: int | None
    moment: Any
    updated: int | None


@dataclass(frozen=True)
class ReadSet:
    """Versions of the tables and views that a statement reads.

    Attributes:
        versions: the versions by name, of those that are known.
        definitions: the SQL texts of the views.
        as_of: in which versions the statement reads the tables, as in `Reads`.
        written: ids of snapshots that the reader itself has committed since.
        is_complete: whether the statement reads nothing else: no file, no relation that is in no
            catalog of the profile, and nothing that is not understood.
    """

    versions: Mapping[QualifiedName, Version]
    definitions: tuple[str, ...] = ()
    as_of: Mapping[QualifiedName, frozenset[AsOf]] = field(default_factory=dict)
    written: frozenset[int] = frozenset()
    is_complete: bool = True

    def changed(self, catalogs: Catalogs) -> QualifiedName | None:
        """Return a table or view that has changed; None if none has.

        Args:
            catalogs: the catalogs of the tables.
        """
        return next(
            (name for name in self.versions if self.has_changed(name, catalogs.metadata(name))),
            None,
        )

    def has_changed(self, name: QualifiedName, metadata: Metadata | None) -> bool:
        """Return whether the statement read other rows of a relation than it has now.

        Args:
            name: the relation; false if the statement does not read it.
            metadata: what it has now; None if it does not exist.
        """
        if name not in self.versions:
            return False
        if metadata is None:
            return True
        # Only a new snapshot or schema changes the rows, or another one of a tag or branch.
        as_of = self.as_of.get(name, CURRENT)
        version, before = _version(metadata, as_of), self.versions[name]
        if (version.uuid, version.schema) != (before.uuid, before.schema):
            return True
        for now, then in zip(version.fixed, before.fixed, strict=True):
            # The reader may have written to a branch.
            if not self._only_reader_wrote(metadata, now, then, set()):
                return True
        if None not in as_of or version[3:5] == before[3:5]:
            return False
        since, moment = before.current, before.moment
        between = current_since(metadata, moment) if moment or since is None else set()
        is_view = "versions" in metadata
        return is_view or not self._only_reader_wrote(metadata, version.current, since, between)

    def _only_reader_wrote(
        self, metadata: Metadata, snapshot_id: int | None, since: int | None, between: set[int]
    ) -> bool:
        """Return whether all snapshots from one to another are compactions or the reader's own.

        All those `between`, which were current, must be among them.
        """
        known = metadata.get("snapshots") or []
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in known}
        while snapshot_id != since:
            snapshot = snapshots.get(snapshot_id)
            if snapshot is None:
                return False
            is_compaction = (snapshot.get("summary") or {}).get("operation") == COMPACTION
            if not (is_compaction or snapshot_id in self.written):
                return False
            between -= {snapshot_id}
            snapshot_id = snapshot.get("parent-snapshot-id")
        # Rows may have been read of the others, which were rolled back.
        return not between

    def only(self, names: Iterable[QualifiedName]) -> ReadSet:
        """Return what is read of some relations.

        Args:
            names: the relations.
        """
        versions = {name: self.versions[name] for name in names}
        return ReadSet(versions, as_of={n: self.as_of.get(n, CURRENT) for n in versions})

    def __or__(self, other: ReadSet) -> ReadSet:
        """Return what both read; of a relation that both read, what the other one does."""
        return replace(
            self,
            versions={**self.versions, **other.versions},
            as_of={**self.as_of, **other.as_of},
        )

    def at_version(self, name: QualifiedName, metadata: Metadata) -> ReadSet:
        """Return the read set of the same rows, which a later version of a table has, too.

        Args:
            name: the table.
            metadata: its metadata in that version.
        """
        version = _version(metadata, self.as_of.get(name, CURRENT))
        return replace(self, versions={**self.versions, name: version})

    def with_schema(self, name: QualifiedName, metadata: Metadata) -> ReadSet:
        """Return the read set of the same rows, after the reader itself changed the columns.

        Args:
            name: the table.
            metadata: its metadata since then.
        """
        version = self.versions[name]._replace(schema=row_schema(metadata))
        return replace(self, versions={**self.versions, name: version})


def capture_read_set(
    catalogs: Catalogs,
    read: Reads | None,
    views: Views,
    relations: dict[QualifiedName, Metadata] | None = None,
    load: Callable[[QualifiedName], Metadata | None] | None = None,
    cached: CachedViews | None = None,
) -> ReadSet:
    """Capture the current versions of the tables and views that a statement reads.

    Args:
        catalogs: the catalogs of the tables.
        read: relations that the statement reads; None if unknown.
        views: relations that temporary views read, by the view's name in lower case.
        relations: gets the metadata of the tables and views.
        load: loads the metadata of one; by default, the catalogs do.
        cached: what the cached ones of these views read when they were cached. Their rows are
            still those of that time.

    Returns:
        The read set, with the tables behind views.
    """
    is_complete = read is not None
    relations = {} if relations is None else relations
    load = load or catalogs.metadata
    as_of: dict[QualifiedName, frozenset[AsOf]] = {}
    definitions: list[str] = []
    earlier: list[ReadSet] = []
    pending = [] if read is None else [read]
    visited: set[NameParts] = set()
    while pending:
        reading = pending.pop()
        for parts in reading.relations:
            if (name := catalogs.find_qualified(parts)) is not None:
                versions = reading.versions.get(parts, CURRENT)
                as_of[name] = as_of.get(name, frozenset()) | versions
            # A view may name the catalog, and the statement not.
            if (key := name or parts) in visited:
                continue
            visited.add(key)
            if len(parts) == 1:
                reads_of_relation = views.get(parts[0].lower())
                before = (cached or {}).get(parts[0].lower(), ReadSet({}))
                earlier.append(before or ReadSet({}, is_complete=False))
            else:
                reads_of_relation = _add_relation(catalogs, name, load, relations, definitions)
            if reads_of_relation is None:
                is_complete = False
            else:
                pending.append(reads_of_relation)
    found = {name: _version(metadata, as_of[name]) for name, metadata in relations.items()}
    for before in earlier:
        found |= before.versions
        as_of |= {name: before.as_of.get(name, CURRENT) for name in before.versions}
    return ReadSet(
        found,
        tuple(sorted(definitions)),
        {name: read_as for name, read_as in as_of.items() if read_as != CURRENT},
        frozenset().union(*(before.written for before in earlier)),
        is_complete and all(before.is_complete for before in earlier),
    )


def _add_relation(
    catalogs: Catalogs,
    name: QualifiedName | None,
    load: Callable[[QualifiedName], Metadata | None],
    relations: dict[QualifiedName, Metadata],
    definitions: list[str],
) -> Reads | None:
    """Add a relation's metadata, and return what the relation itself reads; None if unknown."""
    from dbt.adapters.iceberg_stream.sql.queries import reads

    try:
        metadata = None if name is None else load(name)
    except CatalogError:
        return None
    if name is None or metadata is None:
        return None
    relations[name] = metadata
    if "versions" not in metadata:
        return Reads(frozenset())
    definition = _definition(metadata)
    if definition is None or (read := reads(definition)) is None:
        return None
    definitions.append(definition)
    catalog, (namespace, _) = catalogs.split(name)
    default = _view_version(metadata)
    return _in_namespace(
        read,
        default.get("default-catalog") or catalog.name,
        ".".join(default.get("default-namespace") or ()) or namespace,
    )


def _in_namespace(read: Reads, catalog: str, namespace: str) -> Reads:
    """Return reads with a catalog and a namespace before names that have none."""
    first = (catalog, namespace)
    names = {parts: (*first[: 3 - len(parts)], *parts) for parts in read.relations}
    as_of: dict[NameParts, frozenset[AsOf]] = {}
    for parts, name in names.items():
        as_of[name] = as_of.get(name, frozenset()) | read.versions.get(parts, CURRENT)
    return Reads(frozenset(as_of), as_of)


def _view_version(view: Metadata) -> Metadata:
    versions: list[Metadata] = view["versions"]
    return next(v for v in versions if v["version-id"] == view["current-version-id"])


def _version(metadata: Metadata, as_of: Collection[AsOf]) -> Version:
    """Return the version of a table or view.

    Args:
        metadata: of the table or view.
        as_of: in which versions a statement reads it.
    """
    if "versions" in metadata:
        # A view that gets an earlier definition back has the id of that version again.
        changes = len(metadata.get("version-log") or ())
        version = (metadata["current-version-id"],)
        return Version(metadata["view-uuid"], version, None, None, changes, None)
    uuid, schema = metadata["table-uuid"], row_schema(metadata)
    versions = sorted((v for v in as_of if v is not None), key=str)
    fixed = tuple(_snapshot_id(metadata, version) for version in versions)
    if None not in as_of:
        # A branch is read with the table's schema, a snapshot with its own. Tags may move and back.
        moves = any(isinstance(version, str) for version in versions)
        updated = metadata["last-updated-ms"] if moves else None
        return Version(uuid, fixed, schema, None, None, updated)
    snapshot = current_snapshot(metadata)
    current = None if snapshot is None else snapshot.snapshot_id
    # A rollback makes an earlier snapshot current again.
    times = (became_current(metadata), metadata["last-updated-ms"])
    return Version(uuid, fixed, schema, current, *times)


def _snapshot_id(metadata: Metadata, version: int | str) -> int | None:
    """Return the id of the snapshot in a version; None if the table does not have it."""
    if isinstance(version, str):
        reference = (metadata.get("refs") or {}).get(version)
        return None if reference is None else int(reference["snapshot-id"])
    ids = {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or []}
    return version if version in ids else None


def _definition(view: Metadata) -> str | None:
    """Return the SQL text of a view's current version (view spec, "Representations")."""
    representations = _view_version(view)["representations"]
    return next((r["sql"] for r in representations if r.get("dialect") == "spark"), None)
