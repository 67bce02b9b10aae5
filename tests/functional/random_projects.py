"""Random histories of a project: tables, incremental models and snapshots of all types.

A history depends on its seed only. Each step has the files of the project at that time, in which
columns come and go and types widen, and the arguments of the command that builds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import yaml

# The types that each column of a project's source may have.
TYPES: dict[str, Sequence[str]] = {
    "k": ["int", "bigint", "string", "decimal(10,2)"],
    "s": ["string", "varchar(5)"],
    "d": ["date", "timestamp", "timestamp_ntz"],
    "n": ["double", "float", "decimal(38,10)", "smallint", "tinyint"],
    "arr": ["array<int>", "array<struct<a:int,b:string>>"],
    "m": ["map<string,int>", "map<string,array<string>>"],
    "st": ["struct<x:int,y:string>", "struct<x:int,y:array<date>>"],
    "b": ["binary", "boolean"],
}
WIDER = {"int": "bigint", "float": "double", "decimal(10,2)": "decimal(12,2)"}
VALUES: dict[str, Sequence[str]] = {
    "double": ["NaN", "Infinity", "-0.0", "0.0", "1.5", "-2e10"],
    "string": ["", "a", "Ä", "a b", "x\\'y", "zz", " ", "NULL"],
    "date": ["1582-10-04", "1970-01-01", "2024-02-29", "9999-12-31", "0001-01-01"],
    "timestamp": [
        "1582-10-04 00:00:00.123456",
        "1969-12-31 23:59:59.999999",
        "2024-03-31 02:30:00",
        "9999-12-31 23:59:59",
        "0001-01-01 00:00:00",
    ],
    "boolean": ["true", "false"],
}
VALUES |= {"float": VALUES["double"], "varchar(5)": VALUES["string"]}
VALUES |= {"timestamp_ntz": VALUES["timestamp"]}
STRATEGIES = ["merge"] * 3 + ["append", "delete+insert", "insert_overwrite"]
SCHEMA_CHANGES = ["ignore", "append_new_columns", "sync_all_columns", "fail"]
FILTERS = ["", "", "where id % 2 = 0", "where false"]
MERGE_ENGINE = "var('merge_engine', 'auto')"
MERGE_STEPS = [
    {"matched_condition": "DBT_INTERNAL_SOURCE.id % 2 = 0"},
    {"not_matched_condition": "DBT_INTERNAL_SOURCE.id % 2 = 0"},
    {"not_matched_by_source_action": "delete"},
    {"skip_matched_step": True},
    {"skip_not_matched_step": True},
]
MERGE_ON_READ = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "merge")}
# What changes a table after the model has written it.
HOOKS = [
    "delete from {{ this }}",
    "delete from {{ this }} where id % 2 = 0",
    "{{ delete_rows(this, 'select id from ' ~ ref('src') ~ ' where id > 20', 'id') }}",
    "{{ update_rows(this, 'select id, n from ' ~ ref('src') ~ ' where id > 20', 'id') }}",
]
SNAPSHOTS: list[dict[str, Any]] = [
    {"strategy": "check", "check_cols": "all"},
    {"strategy": "check", "check_cols": ["s"], "hard_deletes": "invalidate"},
    {"strategy": "check", "check_cols": ["n"], "hard_deletes": "new_record"},
    {"strategy": "timestamp", "updated_at": "d", "hard_deletes": "invalidate"},
]
PLAIN = "select * from {{ ref('src') }} where id % 3 <> "
TOTALS = """
select id % 4 as g, count(*) as c, max(id) as greatest, sort_array(collect_list(id)) as ids
from {{ ref('src') }} group by all
"""
# Also if the other model has no rows.
FAILING = "select cast(raise_error('no') as int) as x from (select count(*) from {{ ref('%s') }})"


class Jinja(str):
    """An expression in a model's config, where other texts are quoted."""

    __repr__ = str.__str__


@dataclass(frozen=True)
class Step:
    """A project at one time of its history.

    Attributes:
        files: their text, by path in the project's folder.
        arguments: of the dbt command that builds it.
    """

    files: Mapping[str, str]
    arguments: Sequence[str]

    def corrected(self) -> Step:
        """Return the step with a model that works in place of the one that fails."""
        working = model({"materialized": "table"}, "select 1 as x")
        return replace(self, files={**self.files, "models/failing.sql": working})


class RandomProject:
    """A project that changes at random from step to step.

    Args:
        seed: decides all that follows.
        incremental: the number of its incremental models.
        evolves: whether columns come and go and types widen.
        fails: how often a step has a model that fails.
    """

    def __init__(
        self, seed: int, incremental: int = 5, evolves: bool = True, fails: float = 0.15
    ) -> None:
        self.rng = Random(seed)
        self.evolves, self.fails = evolves, fails
        self.types = {name: self.rng.choice(types) for name, types in TYPES.items()}
        self.configs = {f"inc{number}": self._config() for number in range(incremental)}
        snapshot = {"unique_key": "id", **self.rng.choice(SNAPSHOTS)}
        if snapshot.get("check_cols") == "all":
            # dbt compares its columns by `!=`, which Spark lacks for maps.
            del self.types["m"]
        entry = {"name": "snap", "relation": "ref('src')", "config": snapshot}
        self.snapshots = yaml.safe_dump({"snapshots": [entry]})

    def next_step(self) -> Step:
        """Return the project's next step."""
        columns = self._evolve() if self.evolves else list(self.types)
        models = {
            "src": model({"materialized": "table"}, self._source(columns)),
            "plain": model(self._materialized(), PLAIN + str(self.rng.randrange(3))),
            "totals": model({"materialized": "table"}, TOTALS),
            "failing": self._failing(),
        }
        for name, config in self.configs.items():
            hook = {"post_hook": self.rng.choice(HOOKS)} if self._happens(0.1) else {}
            models[name] = model({**config, **hook}, self._increment(config, columns))
        files = {f"models/{name}.sql": text for name, text in models.items()}
        full_refresh = ["--full-refresh"] if self._happens(0.08) else []
        return Step(files | {"snapshots/snap.yml": self.snapshots}, ["build", *full_refresh])

    def _happens(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _materialized(self) -> dict[str, str]:
        # A branch cannot have views.
        is_view = self.evolves and self._happens(0.15)
        return {"materialized": "view" if is_view else "table"}

    def _evolve(self) -> list[str]:
        """Widen a type now and then; return the columns that the source has for now."""
        if self._happens(0.15):
            name = self.rng.choice(list(self.types))
            self.types[name] = WIDER.get(self.types[name], self.types[name])
        absent = self.rng.sample(list(self.types), self.rng.choice([0, 0, 1, 2]))
        return [name for name in self.types if name not in absent]

    def _config(self) -> dict[str, Any]:
        """Return the config of an incremental model."""
        rng = self.rng
        strategy = rng.choice(STRATEGIES)
        config: dict[str, Any] = {
            "materialized": "incremental",
            "incremental_strategy": strategy,
            "on_schema_change": rng.choice(SCHEMA_CHANGES) if self.evolves else "ignore",
        }
        if strategy in ("merge", "delete+insert"):
            config["unique_key"] = rng.choice(["id", ["id"], ["id", "k"]])
        if strategy == "merge":
            config |= self._merge_options()
        properties = MERGE_ON_READ if self._happens(0.2) else {}
        if self._happens(0.15):
            properties = {**properties, "format-version": "3"}
        if properties:
            config["table_properties"] = properties
        if self._happens(0.15):
            config["sort_order"] = ["id desc"]
        if self._happens(0.5 if strategy == "insert_overwrite" else 0.25):
            config["partition_by"] = rng.choice(["bucket(4, id)", "id"])
        return config

    def _merge_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"merge_engine": Jinja(MERGE_ENGINE)}
        if self._happens(0.3):
            options["merge_exclude_columns"] = ["s"]
        elif self._happens(0.3):
            options["merge_update_columns"] = ["n"]
        if self._happens(0.2):
            options["incremental_predicates"] = ["DBT_INTERNAL_DEST.id < 30"]
        if self._happens(0.3):
            options |= self.rng.choice(MERGE_STEPS)
        return options

    def _source(self, columns: Sequence[str]) -> str:
        """Return a query of a few rows; seldom one has no key, or two have the same."""
        count = self.rng.choice([0, 1, 3, 8, 30])
        ids: list[int | None] = [*self.rng.sample(range(40), count)]
        if ids and self._happens(0.15):
            ids[0] = None
        if ids and self._happens(0.03):
            ids.append(ids[-1])
        rows = [self._row(columns, id) for id in ids]
        return "\nunion all ".join(rows or [f"{self._row(columns, 1)} where false"])

    def _row(self, columns: Sequence[str], id: int | None) -> str:
        values = [f"{self._literal(self.types[name])} as {name}" for name in columns]
        return "select " + ", ".join(
            [f"cast({'null' if id is None else id} as int) as id", *values]
        )

    def _increment(self, config: Mapping[str, Any], columns: Sequence[str]) -> str:
        """Return the query of an incremental model, of all or some of the source's columns."""
        selected = "*"
        # Other models mostly fail without columns that their tables have.
        follows = config["on_schema_change"] in ("append_new_columns", "sync_all_columns")
        if self.evolves and self._happens(0.3 if follows else 0.05):
            some = ["id", "k", "n", "s"][: self.rng.randint(1, 4)]
            if "k" in config.get("unique_key", ()):
                some.append("k")
            there = [name for name in some if name in ("id", *columns)]
            selected = ", ".join(dict.fromkeys(there))
        return f"select {selected} from {{{{ ref('src') }}}} {self.rng.choice(FILTERS)}"

    def _failing(self) -> str:
        if not self._happens(self.fails):
            return model({"enabled": False}, "select 1 as x")
        return model({"materialized": "table"}, FAILING % self.rng.choice(["src", *self.configs]))

    def _literal(self, type: str) -> str:
        """Return an expression of a random value of a type."""
        if self._happens(0.15):
            return f"cast(null as {type})"
        if type == "binary":
            return self.rng.choice(["X''", "X'00ff'"])
        if type in VALUES:
            return f"cast('{self.rng.choice(VALUES[type])}' as {type})"
        if type.startswith("decimal"):
            return f"cast('{self.rng.randint(-(10**6), 10**6) / 100}' as {type})"
        if type.startswith(("array<", "map<", "struct<")):
            return f"cast({self._nested(type)} as {type})"
        return f"cast({self.rng.randint(-100, 100)} as {type})"

    def _nested(self, type: str) -> str:
        kind, inner = type.removesuffix(">").split("<", 1)
        if kind == "struct":
            fields = [field.split(":", 1) for field in inner.split(",", 1)]
            values = [f"'{name}', {self._literal(field)}" for name, field in fields]
            return f"named_struct({', '.join(values)})"
        count = self.rng.randint(0, 2)
        if kind == "array":
            return f"array({', '.join(self._literal(inner) for _ in range(count))})"
        value = inner.split(",", 1)[1]
        pairs = [f"'k{number}', {self._literal(value)}" for number in range(count)]
        return f"map({', '.join(pairs)})"


def model(config: Mapping[str, Any], sql: str) -> str:
    """Return the file of a model."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in config.items())
    return f"{{{{ config({arguments}) }}}}\n{sql}"
