"""Clones: new tables with the files of another table's current snapshot, without copying them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from dbt_common.exceptions import DbtRuntimeError
from pyiceberg.table.update import (
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from dbt.adapters.iceberg_stream.catalog.catalog import (
    GC_ENABLED,
    IcebergCatalog,
    Name,
    collects_garbage,
)
from dbt.adapters.iceberg_stream.catalog.clone_tags import (
    ORIGIN,
    ORIGIN_LOCATION,
    ORIGIN_UUID,
    SNAPSHOT,
    TAG,
    CloneTag,
    is_clone,
)
from dbt.adapters.iceberg_stream.catalog.copies import copy_metadata, stage_empty
from dbt.adapters.iceberg_stream.catalog.errors import (
    CatalogError,
    CommitConflict,
    CommitStateUnknown,
)
from dbt.adapters.iceberg_stream.catalog.metadata import MAIN, Metadata
from dbt.adapters.iceberg_stream.catalog.storage import write_new
from dbt.adapters.iceberg_stream.catalog.tables import LoadedTable
from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.redacted import RedactedError
from dbt.adapters.iceberg_stream.tables.commit.manifests import read_manifest_list
from dbt.adapters.iceberg_stream.tables.commit.producer import parent_snapshot, remove_quietly
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import PREFIX
from dbt.adapters.iceberg_stream.tables.references import FOLDERS

STREAM = f"{PREFIX}sink."
# Other writers may commit to the original meanwhile.
ATTEMPTS = 5
# Otherwise `history.expire.max-ref-age-ms` of the original may let the tag expire.
FOREVER_MS = 2**63 - 1

logger = Logger()


class NotClonable(RedactedError, DbtRuntimeError):
    """A table cannot be cloned safely; nothing was changed."""


def clone_table(
    catalog: IcebergCatalog, origin: Name, name: Name, final_name: Name | None = None
) -> LoadedTable:
    """Create a table with the files of another table's current snapshot.

    A tag of the original keeps the snapshot, and `gc.enabled: false` of the clone keeps Iceberg's
    procedures from deleting files. The clone writes to its own folder.

    Args:
        catalog: the catalog.
        origin: namespace and identifier of the table to clone.
        name: of the clone, which must not exist.
        final_name: under which the clone will be renamed.

    Returns:
        The clone.

    Raises:
        NotClonable: the table cannot be cloned safely.
        CatalogError: a relation of this name exists, or other writers committed to the original
            in each attempt to tag it.
        CommitStateUnknown: the catalog did not confirm the tag, which may be left.
    """
    for attempt in _attempts():
        with attempt:
            return _clone_once(catalog, origin, name, CloneTag.create(final_name or name))
    raise AssertionError("tenacity ends with a result or an error")


def _clone_once(catalog: IcebergCatalog, origin: Name, name: Name, tag: CloneTag) -> LoadedTable:
    published = catalog.load(origin)
    if published is None:
        raise NotClonable("it is not a table")
    _require_clonable(published.metadata)
    snapshot = parent_snapshot(published.metadata, MAIN)
    if catalog.metadata(name) is not None:
        raise CatalogError(f"{'.'.join(name)} already exists.")
    with ExitStack() as undo:
        if snapshot is not None:
            undo.callback(remove_tag, catalog, origin, published.metadata["table-uuid"], str(tag))
            _add_tag(catalog, published, snapshot["snapshot-id"], str(tag))
        try:
            clone = _register(catalog, published, name, tag, undo)
        except CommitConflict:
            raise
        except (CatalogError, OSError) as error:
            raise NotClonable(f"the catalog cannot register it: {reason(error)}") from error
        try:
            if snapshot is not None and "manifest-list" in snapshot:
                read_manifest_list(clone.io, snapshot["manifest-list"])
        except OSError as error:
            raise NotClonable(
                "the credentials that the catalog gives for the clone cannot read its files: "
                f"{reason(error)}"
            ) from error
        undo.pop_all()
    return clone


def _require_clonable(metadata: Metadata) -> None:
    properties = metadata.get("properties") or {}
    if is_clone(metadata):
        raise NotClonable(f"it is a clone of {properties[ORIGIN]}, which has its files")
    if not collects_garbage(properties):
        raise NotClonable(f"its files may belong to other tables ({GC_ENABLED} is false)")
    if any(name.startswith(STREAM) for name in properties):
        raise NotClonable("a stream writes to it, and its progress cannot be cloned")


def _add_tag(catalog: IcebergCatalog, table: LoadedTable, snapshot_id: int, tag: str) -> None:
    reference = {"ref-name": tag, "type": "tag", "snapshot-id": snapshot_id}
    update = SetSnapshotRefUpdate.model_validate({**reference, "max-ref-age-ms": FOREVER_MS})
    try:
        _commit_ref(catalog, table, update)
    except (CommitConflict, CommitStateUnknown):
        raise
    except CatalogError as error:
        raise NotClonable(
            f"a tag must keep its snapshot, and cannot be set: {reason(error)}"
        ) from error
    tagged = catalog.load(table.name, history=False)
    if tagged is None or tag not in (tagged.metadata.get("refs") or {}):
        raise NotClonable("a tag must keep its snapshot, and the catalog keeps no tags")


def _commit_ref(catalog: IcebergCatalog, table: LoadedTable, update: TableUpdate) -> None:
    catalog.commit(table, (AssertTableUUID(uuid=table.metadata["table-uuid"]),), (update,))


def _register(
    catalog: IcebergCatalog, origin: LoadedTable, name: Name, tag: CloneTag, undo: ExitStack
) -> LoadedTable:
    # Its folder and its credentials are those of a new table.
    new = stage_empty(catalog, name, {})
    folder = new.metadata["location"].rstrip("/")
    location = f"{folder}/metadata/00000-{uuid.uuid4()}.metadata.json"
    # Also if the catalog registers it and does not answer.
    undo.callback(_undo_registration, catalog, name, tag, partial(remove_quietly, new.io, location))
    write_new(new.io, location, json.dumps(_clone_metadata(origin, folder, tag)).encode())
    catalog.register(name, location)
    clone = catalog.load(name)
    if clone is None:
        raise CatalogError(f"{'.'.join(name)} was dropped at once.")
    return clone


def _undo_registration(
    catalog: IcebergCatalog, name: Name, tag: CloneTag, remove_metadata: Callable[[], None]
) -> None:
    """Drop the clone, but no other table of its name, then its metadata file."""
    try:
        catalog.unregister(name, lambda found: found.get("table-uuid") == tag.table_uuid)
    except (CatalogError, OSError) as error:
        logger.warning(
            f"{'.'.join(name)} may be left of a clone that failed, because the catalog did not "
            f"answer: {reason(error)}\nDrop it if the catalog lists it."
        )
        return
    remove_metadata()


def _clone_metadata(origin: LoadedTable, folder: str, tag: CloneTag) -> dict[str, Any]:
    metadata = origin.metadata
    snapshot = parent_snapshot(metadata, MAIN)
    properties = {
        name: value
        for name, value in (metadata.get("properties") or {}).items()
        # Its new files go to its own folder.
        if not name.startswith(PREFIX) and name not in FOLDERS
    }
    properties |= {
        GC_ENABLED: "false",
        ORIGIN: ".".join(origin.name),
        ORIGIN_UUID: metadata["table-uuid"],
        ORIGIN_LOCATION: metadata["location"],
    }
    result = copy_metadata(metadata, properties) | {
        "table-uuid": tag.table_uuid,
        "location": folder,
        "snapshots": [],
        "snapshot-log": [],
        "refs": {},
        # Files of statistics may be replaced in the original, and are removed then.
        "statistics": [],
        "partition-statistics": [],
    }
    if snapshot is not None:
        number = snapshot["snapshot-id"]
        main = (metadata.get("refs") or {}).get(MAIN) or {"type": "branch"}
        properties = {**properties, TAG: str(tag), SNAPSHOT: str(number)}
        log = {"snapshot-id": number, "timestamp-ms": snapshot["timestamp-ms"]}
        result |= {
            "properties": properties,
            "snapshots": [snapshot],
            "snapshot-log": [log],
            "refs": {MAIN: {**main, "snapshot-id": number}},
        }
    return result


def used_tags(tags: Collection[str], catalogs: Iterable[IcebergCatalog]) -> set[str]:
    """Return those of some tags of clones that tables still need.

    Args:
        tags: the tags.
        catalogs: where the clones, their copies and their staged versions may be.

    Raises:
        CatalogError: a table cannot be read, so it may be a clone.
    """
    if not tags:
        return set()
    ids = {text for catalog in catalogs for text in _clone_ids(catalog)}
    parsed = {text: CloneTag.parse(text) for text in tags}
    return {text for text, tag in parsed.items() if text in ids or (tag and tag.table_uuid in ids)}


def _clone_ids(catalog: IcebergCatalog) -> Iterator[str]:
    """Yield the UUID of each table, and the tag that it names."""
    for name, kind in catalog.all_relations():
        if kind != "table":
            continue
        try:
            other = catalog.metadata(name)
        except (CatalogError, OSError, ValueError, KeyError) as error:
            raise CatalogError(
                f"{'.'.join(name)} cannot be read, and may be a clone that needs old snapshots: "
                f"{error}"
            ) from error
        if other is not None:
            yield other.get("table-uuid", "")
            yield (other.get("properties") or {}).get(TAG, "")


def remove_tag(catalog: IcebergCatalog, origin: Name, table_uuid: str, tag: str) -> None:
    """Remove a tag of the original, if possible; otherwise say how."""
    try:
        for attempt in _attempts():
            with attempt:
                table = catalog.load(origin, history=False)
                if table is None or table.metadata["table-uuid"] != table_uuid:
                    return
                if tag in (table.metadata.get("refs") or {}):
                    _commit_ref(
                        catalog, table, RemoveSnapshotRefUpdate.model_validate({"ref-name": tag})
                    )
    except (CatalogError, OSError) as error:
        logger.warning(
            f"The tag `{tag}` of {'.'.join(origin)} is no longer needed, but cannot be removed "
            f"({reason(error)}). It keeps a snapshot with its files. Remove it: alter table "
            f"{'.'.join(origin)} drop tag `{tag}`"
        )


def _attempts() -> Iterator[Any]:
    return iter(
        Retrying(
            retry=retry_if_exception_type(CommitConflict),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            reraise=True,
        )
    )
