"""What a statement reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NameParts = tuple[str, ...]
# A snapshot's id, the name of a tag or branch, or None for the current version.
AsOf = int | str | None
CURRENT: frozenset[AsOf] = frozenset([None])


@dataclass(frozen=True)
class Reads:
    """Relations that a statement reads.

    Attributes:
        relations: name parts as in the statement; the target only if the statement reads it.
        versions: in which versions it reads those that it does not only read in the current one.
    """

    relations: frozenset[NameParts]
    versions: Mapping[NameParts, frozenset[AsOf]] = field(default_factory=dict)
