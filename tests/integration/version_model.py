"""What a stream with `stored_as_scd_type: 2` makes of a key's versions: a plain model."""

from __future__ import annotations

from typing import Any

# The key, the value, where the version begins, and where it ends; None for an open one.
Version = tuple[int | None, str | None, int, int | None]
# The key, the value, and the time; without a value, the change deletes the row.
Change = tuple[int | None, str | None, int]
# The key and the time.
Delete = tuple[int | None, int]


def first_changes(changes: list[Change]) -> dict[int | None, int]:
    """Return the time of each key's first change."""
    return {key: min(c[2] for c in changes if c[0] == key) for key, _, _ in changes}


def may_change(version: Version, first: dict[int | None, int]) -> bool:
    """Return whether a version does not begin and end before the first change of its key."""
    key, _, start, end = version
    return key in first and (end is None or end > first[key] or start >= first[key])


def deletes_of(changes: list[Change]) -> set[Delete]:
    """Return the deletes among changes."""
    return {(key, at) for key, value, at in changes if value is None}


def changed_versions(
    versions: list[Version], changes: list[Change], deletes: set[Delete]
) -> list[Version]:
    """Return the versions of all keys after some changes, the last one of which counts.

    Args:
        versions: before, of any keys.
        changes: in the order of their source.
        deletes: all earlier ones.
    """
    first = first_changes(changes)
    after = [version for version in versions if not may_change(version, first)]
    for key in first:
        events: dict[int, str | None] = {}
        ours = [
            version[1:] for version in versions if version[0] == key and may_change(version, first)
        ]
        events |= {at: None for deleted, at in deletes if deleted == key}
        events |= {end: None for _, _, end in ours if end is not None}
        events |= {start: value for value, start, _ in ours}
        events |= {at: value for changed, value, at in changes if changed == key}
        times = sorted(events)
        ends: list[Any] = [*times[1:], None]
        for start, end in zip(times, ends, strict=True):
            value = events[start]
            if value is not None:
                after.append((key, value, start, end))
    return after
