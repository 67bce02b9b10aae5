"""Random histories of a snapshot's source, and dbt's rules for its versions in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# The keys of the rows: an integer, or a text and an integer. Some have the same text as others when
# dbt hashes them: null and '', or a separator in a value.
KEYS = (
    (None, None, None),
    (1, "", None),
    (2, None, 1),
    (3, "a", None),
    (4, "a", 1),
    (5, "A", 1),
    (6, "a|1", None),
    (7, "it''s", 0),
)
VALUES = ("0.0", "-0.0", "1.5", "NaN", None)
MAPS = (None, {}, {"x": 1, "y": 2}, {"x": 1, "y": None}, {"y": 2})
COLUMNS = ("k", "id", "part", "value", "attrs", "at")


@dataclass(frozen=True)
class Row:
    """A row of the source; `at` is a day."""

    value: str | None
    attrs: tuple[tuple[str, int | None], ...] | None
    at: int

    def checked(self, columns: Iterable[str]) -> tuple[Any, ...]:
        """Return the values of columns, equal if Spark's values are."""
        number = None if self.value is None else float(self.value) if self.value != "NaN" else "NaN"
        values = {"value": number, "attrs": self.attrs and frozenset(self.attrs), "at": self.at}
        return tuple((values[name], values[name] is None) for name in columns)


State = Mapping[int, Row]


def next_state(state: State, source: random.Random) -> State:
    """Return the next state: rows are added, changed, deleted, and come back."""
    result = dict(state)
    for index in source.sample(range(len(KEYS)), 5):
        if index in result and source.random() < 0.4:
            del result[index]
        elif index in result and source.random() < 0.3:
            # A late change, or one that `updated_at` does not show.
            result[index] = replace(result[index], value=source.choice(VALUES))
        else:
            attrs = source.choice(MAPS)
            entries = None if attrs is None else tuple(sorted(attrs.items()))
            result[index] = Row(source.choice(VALUES), entries, source.randrange(1, 9))
    return result


def table_sql(state: State, source: random.Random) -> str:
    """Return a query of a state: rows, columns' letters and entries of maps in any order."""
    rows = []
    for index, row in sorted(state.items(), key=lambda _: source.random()):
        k, name, part = KEYS[index]
        entries = list(row.attrs or ())
        source.shuffle(entries)
        pairs = ", ".join(f"'{key}', {_sql(value)}" for key, value in entries)
        attrs = "null" if row.attrs is None else f"map({pairs})"
        text = "null" if name is None else f"'{name}'".replace("''s", "\\'s")
        value = "null" if row.value is None else f"'{row.value}'"
        rows.append(
            f"select cast({_sql(k)} as int) {_any_case('k', source)}, "
            f"cast({text} as string) {_any_case('id', source)}, "
            f"cast({_sql(part)} as int) {_any_case('part', source)}, "
            f"cast({value} as double) {_any_case('value', source)}, "
            f"cast({attrs} as map<string, int>) {_any_case('attrs', source)}, "
            f"timestamp '2020-01-0{row.at} 00:00:00' {_any_case('at', source)}"
        )
    return " union all ".join(rows)


def _any_case(name: str, source: random.Random) -> str:
    return source.choice([name, name.upper(), name.title()])


def _sql(value: object) -> str:
    return "null" if value is None else str(value)


@dataclass
class Version:
    """A version of a key. Times are days if positive, and runs of dbt if negative."""

    index: int
    row: Row
    since: int
    until: int | None = None
    is_gone: bool = False


@dataclass
class Snapshot:
    """dbt's rules for the versions of a snapshot.

    Attributes:
        strategy: `check` or `timestamp`.
        deletes: `hard_deletes`.
        checked: columns of `check_cols`.
    """

    strategy: str
    deletes: str
    checked: tuple[str, ...] = ("value", "attrs", "at")
    versions: list[Version] = field(default_factory=list)

    def run(self, state: State, number: int) -> None:
        """Apply the state that run `number` of dbt finds."""
        now = -number
        current = {v.index: v for v in self.versions if v.until is None}
        for index, row in state.items():
            before = current.get(index)
            if before is not None and not before.is_gone and not self._has_changed(before, row):
                continue
            changed_at = row.at if self.strategy == "timestamp" else now
            if before is not None:
                before.until = changed_at
            self.versions.append(Version(index, row, changed_at))
        for index, before in current.items():
            if index in state or self.deletes == "ignore" or before.is_gone:
                continue
            before.until = now
            if self.deletes == "new_record":
                self.versions.append(Version(index, before.row, now, is_gone=True))

    def _has_changed(self, before: Version, row: Row) -> bool:
        if self.strategy == "timestamp":
            return before.since < row.at
        return before.row.checked(self.checked) != row.checked(self.checked)
