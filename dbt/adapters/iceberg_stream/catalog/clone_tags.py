"""Clones of a table: which tables are clones, and the tags that keep their files in the original.

A clone has the files of one snapshot of its original. A tag of the original keeps this snapshot
from expiring, whoever expires the others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timezone

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata

# Table properties of a clone: about its original, and its tag and its snapshot there.
CLONE = "iceberg-stream.clone"
ORIGIN, ORIGIN_UUID = f"{CLONE}.origin", f"{CLONE}.origin-uuid"
ORIGIN_LOCATION = f"{CLONE}.origin-location"
TAG, SNAPSHOT = f"{CLONE}.tag", f"{CLONE}.snapshot-id"
_PREFIX = "dbt_clone"
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class CloneTag:
    """A tag for a clone, as `dbt_clone/dev.orders/20261123T120000Z/…`.

    Attributes:
        table: namespace and identifier of the clone when it was made, joined by a dot.
        created: when (UTC), in whole seconds.
        table_uuid: the clone's, which it keeps when it is renamed.
    """

    table: str
    created: datetime
    table_uuid: str

    def __str__(self) -> str:
        return f"{_PREFIX}/{self.table}/{self.created.strftime(_TIME)}/{self.table_uuid}"

    @classmethod
    def create(cls, name: tuple[str, str]) -> CloneTag:
        """Return the tag for a new clone, with a new table UUID.

        Args:
            name: namespace and identifier of the clone.
        """
        now = datetime.now(timezone.utc).replace(microsecond=0)
        return cls(".".join(name), now, str(uuid.uuid4()))

    @classmethod
    def parse(cls, text: str) -> CloneTag | None:
        """Parse the name of a tag; return None for other tags.

        Args:
            text: the name of a tag or branch.
        """
        prefix, _, rest = text.partition("/")
        parts = rest.rsplit("/", 2)
        if prefix != _PREFIX or len(parts) != 3:
            return None
        try:
            created = datetime.strptime(parts[1], _TIME).replace(tzinfo=timezone.utc)
        except ValueError:
            return None
        return cls(parts[0], created, parts[2])


def clone_tags(metadata: Metadata) -> list[CloneTag]:
    """Return the tags that keep the files of a table's clones.

    Args:
        metadata: of the original; a view has none.
    """
    tags = (CloneTag.parse(name) for name in metadata.get("refs") or {})
    return [tag for tag in tags if tag is not None]


def is_clone(metadata: Metadata) -> bool:
    """Return whether a table is a clone: it has files of another table, outside of its folder.

    Args:
        metadata: of a table or view.
    """
    return ORIGIN in (metadata.get("properties") or {})
