"""Random histories of incremental models that append rows of all types to tables of all layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.functional.random_projects import RandomProject, Step, model

# Partition transforms by the source's column.
TRANSFORMS: dict[str, Sequence[str]] = {
    "id": ["id", "bucket(3, id)", "truncate(10, id)"],
    "s": ["s", "bucket(3, s)", "truncate(1, s)"],
    "d": ["d", "year(d)", "month(d)", "day(d)", "bucket(3, d)"],
    "n": ["n"],
    "b": ["b"],
}
# Types whose rows Spark casts to the type of the column, or refuses.
OTHERS = {
    "id": ["bigint", "smallint", "string", "decimal(12,0)"],
    "k": ["int", "bigint", "string"],
    "s": ["int", "date"],
    "d": ["date", "timestamp", "timestamp_ntz"],
    "n": ["double", "float", "int", "decimal(5,1)"],
    "arr": ["array<bigint>"],
    "st": ["struct<x:int>", "struct<y:string,x:int>"],
    "b": ["string"],
}


class RandomAppends(RandomProject):
    """A project of models that append.

    Args:
        seed: decides all that follows.
        models: their number.
    """

    def __init__(self, seed: int, models: int = 6) -> None:
        super().__init__(seed, incremental=0)
        self.layouts = {f"appends{number}": self._layout() for number in range(models)}
        self._is_first = True

    def next_step(self) -> Step:
        """Return the project's next step; in the first one, all tables get their types."""
        files = {
            f"models/{name}.sql": model(layout, self._rows(not self._is_first))
            for name, layout in self.layouts.items()
        }
        self._is_first = False
        return Step(files, ["run"])

    def _layout(self) -> dict[str, Any]:
        rng = self.rng
        config: dict[str, Any] = {"materialized": "incremental"}
        config["incremental_strategy"] = "append"
        config["format_version"] = rng.choice([1, 2, 2, 3])
        if self._happens(0.6):
            columns = rng.sample(sorted(TRANSFORMS), rng.choice([1, 1, 2]))
            config["partition_by"] = [rng.choice(TRANSFORMS[column]) for column in columns]
        if self._happens(0.4):
            columns = rng.sample(["id", "s", "d", "n", "b"], rng.choice([1, 2]))
            config["sort_order"] = [f"{name} {rng.choice(['asc', 'desc'])}" for name in columns]
        if self._happens(0.2):
            # Without any, Spark refuses rows that are not in the order of their partitions.
            config["distribution"] = rng.choice(["hash", "range"])
        return config

    def _rows(self, varies: bool) -> str:
        """Return a query; its columns may differ from those of the table."""
        types = {"id": "int", **self.types}
        names = list(types)
        if varies:
            self.rng.shuffle(names)
            if self._happens(0.2):
                name = self.rng.choice([*OTHERS])
                types[name] = self.rng.choice(OTHERS[name])
            if self._happens(0.05):
                names.pop()
            if self._happens(0.1):
                names.append("more")
                types["more"] = "int"
            if self._happens(0.2):
                types = {name.upper(): kind for name, kind in types.items()}
                names = [name.upper() for name in names]
        count = self.rng.choice([0, 1, 5, 20])
        rows = [self._values(names, types) for _ in range(max(count, 1))]
        return "\nunion all ".join(rows) + ("" if count else " where false")

    def _values(self, names: Sequence[str], types: dict[str, str]) -> str:
        return "select " + ", ".join(f"{self._literal(types[name])} as {name}" for name in names)
