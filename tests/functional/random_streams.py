"""Random changes, streams of all kinds that apply them, and what their tables must hold, in Python.

The truth takes one change after the other. So it knows nothing of batches: a stream whose rows
depend on where its batches end differs from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

Key = tuple[Any, ...]


class Change(NamedTuple):
    """A record of the source; `op` is `u`, `d` (a delete), or `t` (a truncate)."""

    id: int | None
    part: str | None
    value: str | None
    other: int | None
    at: int
    op: str


class Row(NamedTuple):
    """A row of a stream's table."""

    id: int | None
    part: str | None
    value: str | None
    other: int | None
    at: int


class Version(NamedTuple):
    """A row that is valid from a time to another one, or until now."""

    row: Row
    start: int
    end: int | None


@dataclass
class Truth:
    """The rows of a table by their keys, the times of deletes, and the keys that are marked."""

    key: tuple[str, ...] = ("id",)
    is_ordered: bool = False
    keeps_values: bool = False
    marks_deletes: bool = False
    rows: dict[Key, Row] = field(default_factory=dict)
    deleted: dict[Key, int] = field(default_factory=dict)
    marked: set[Key] = field(default_factory=set)

    def apply(self, change: Change) -> None:
        """Apply a change of the source."""
        key = tuple(getattr(change, name) for name in self.key)
        if change.op == "t":
            self.rows.clear()
            self.deleted.clear()
            return
        if self.is_ordered and change.at < self._latest(key):
            return
        row = self.rows.get(key)
        if change.op == "d":
            self._delete(key, change)
            return
        new = Row(*change[:-1])
        if self.keeps_values and row is not None and key not in self.marked:
            new = Row(*(b if a is None else a for a, b in zip(new, row, strict=True)))
        self.rows[key] = new
        self.marked.discard(key)

    def _latest(self, key: Key) -> int:
        """Return the time of the row or of the delete of a key, or 0."""
        row = self.rows.get(key)
        return max(self.deleted.get(key, 0), row.at if row else 0)

    def _delete(self, key: Key, change: Change) -> None:
        self.deleted[key] = max(change.at, self.deleted.get(key, 0))
        if not self.marks_deletes:
            self.rows.pop(key, None)
        elif key in self.rows:
            self.marked.add(key)
            if self.is_ordered:
                self.rows[key] = self.rows[key]._replace(at=change.at)

    def contents(self) -> Counter[Any]:
        """Return the table's rows."""
        if self.marks_deletes:
            return Counter((*row, key in self.marked) for key, row in self.rows.items())
        return Counter(map(tuple, self.rows.values()))


@dataclass
class Versions:
    """All versions of the rows, by the times of their changes."""

    events: dict[int | None, dict[int, Row | None]] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        """Apply a change, the last one of a key and a time being the one that counts."""
        row = None if change.op == "d" else Row(*change[:-1])
        self.events.setdefault(change.id, {})[change.at] = row

    def contents(self) -> Counter[Any]:
        """Return the table's rows."""
        contents: Counter[Any] = Counter()
        for events in self.events.values():
            times = sorted(events)
            for start, end in zip(times, [*times[1:], None], strict=True):
                row = events[start]
                if row is not None:
                    contents[(*row, start, end)] += 1
        return contents


@dataclass(frozen=True)
class Kind:
    """A kind of stream.

    Attributes:
        config: the model's, besides what all have.
        truth: of a new table.
        columns: what a test reads.
        ops: of the changes that the stream is for.
        others_write: whether other writers may delete and add rows.
    """

    config: str
    truth: Callable[[], Truth | Versions]
    columns: str = "id, part, value, other, at"
    ops: str = "ud"
    others_write: bool = True


ORDERED = "unique_key='id', sequence_by='at'"
MARKED = {"columns": "id, part, value, other, at, gone is not null", "others_write": False}
KINDS = {
    "last": Kind("unique_key='id'", Truth),
    "ordered": Kind(ORDERED, lambda: Truth(is_ordered=True)),
    "emptied": Kind("unique_key='id', apply_as_truncates=\"op = 't'\"", Truth, ops="udt"),
    "two_keys": Kind(
        "unique_key=['part', 'id'], sequence_by=['at']",
        lambda: Truth(key=("part", "id"), is_ordered=True),
    ),
    "by_equality": Kind(f"{ORDERED}, delete_encoding='equality'", lambda: Truth(is_ordered=True)),
    "by_rewriting": Kind(
        f"{ORDERED}, delete_encoding='copy_on_write'",
        lambda: Truth(is_ordered=True),
        others_write=False,
    ),
    "kept": Kind("unique_key='id', ignore_null_updates=true", lambda: Truth(keeps_values=True)),
    "kept_ordered": Kind(
        f"{ORDERED}, ignore_null_updates=true", lambda: Truth(is_ordered=True, keeps_values=True)
    ),
    "marked": Kind(
        "unique_key='id', soft_deletes='gone'", lambda: Truth(marks_deletes=True), **MARKED
    ),
    "marked_ordered": Kind(
        f"{ORDERED}, soft_deletes='gone'",
        lambda: Truth(is_ordered=True, marks_deletes=True),
        **MARKED,
    ),
    "marked_kept": Kind(
        f"{ORDERED}, soft_deletes='gone', ignore_null_updates=true",
        lambda: Truth(is_ordered=True, keeps_values=True, marks_deletes=True),
        **MARKED,
    ),
    "versions": Kind(
        f"{ORDERED}, stored_as_scd_type='2'",
        Versions,
        "id, part, value, other, at, __START_AT, __END_AT",
        others_write=False,
    ),
    "emptied_in_order": Kind(
        f"{ORDERED}, apply_as_truncates=\"op = 't'\"",
        lambda: Truth(is_ordered=True),
        ops="udt",
    ),
}
# What PyArrow computes, and what only Spark does; how many rows are a batch.
WAYS = {"few": ("value", 2), "spark": ("reverse(reverse(value)) as value", 5), "once": ("value", 0)}
SOURCES = """
sources:
  - name: landing
    tables:
      - name: {ops}
        config: {{meta: {{stream: {{type: files, path: landing/{ops}, format: parquet}}}}}}
"""


def models(kinds: list[str]) -> dict[str, str]:
    """Models of some kinds, each in all ways."""
    texts = {f"{ops}.yml": SOURCES.format(ops=ops) for ops in {KINDS[k].ops for k in kinds}}
    for name in kinds:
        kind = KINDS[name]
        for way, (value, batch_rows) in WAYS.items():
            rows = f"batch_rows={batch_rows}, " if batch_rows else ""
            texts[f"{name}_{way}.sql"] = (
                f"{{{{ config(materialized='stream', {rows}{kind.config}, "
                "apply_as_deletes=\"op = 'd'\", **{'except': ['op']}) }}\n"
                f"select id, part, {value}, other, at, op "
                f"from {{{{ stream(source('landing', '{kind.ops}')) }}}}"
            )
    return texts


def changes(rng: Random, ops: str) -> list[Change]:
    """The changes of a file."""
    return [
        Change(
            id=rng.choice([None, 1, 2, 3, 4]),
            part=rng.choice([None, "a", "b"]),
            value=rng.choice([None, "x", "y", "it's", ""]),
            other=rng.choice([None, 1, 2]),
            at=rng.randint(1, 30),
            op=rng.choice("uuu" + ops),
        )
        for _ in range(rng.choice([1, 1, 2, 5, 12]))
    ]
