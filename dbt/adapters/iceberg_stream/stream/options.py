"""The options of a stream model, read once; all faults in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be_one_of
from dbt.adapters.iceberg_stream.tables.merge.options import misspelled

SequenceNumbers = Literal["auto", "one", "many"]
DeleteEncoding = Literal["auto", "equality", "position", "copy_on_write"]
OnBadRecord = Literal["stop", "dead_letters"]
OnNoTransactions = Literal["warn", "stop"]

# What may be a part of a table's name; rows of other routes stay in the model's own table.
LETTERS = "a-z0-9_"
# The table of this name is for what cannot be read.
NO_ROUTE = "dead_letters"
# Databricks' names for the same options.
ALIASES = {"column_list": "columns", "except_column_list": "except"}
CHOICES = {
    "sequence_numbers": ("auto", "one", "many"),
    "on_bad_record": ("stop", "dead_letters"),
    "on_no_transactions": ("warn", "stop"),
    "stored_as_scd_type": (1, 2),
    "delete_encoding": ("auto", "equality", "position", "copy_on_write"),
}
# What other options take.
A_CONDITION = "a condition on the query's columns, as text"
TEXTS = {
    "apply_as_deletes": A_CONDITION,
    "apply_as_truncates": A_CONDITION,
    "soft_deletes": "the name of a column",
    "route_by": "the name of a column",
    "commit_group": "a name",
    "sink_id": "a name",
}
NAMES = ("unique_key", "sequence_by", "columns", "except", "ignore_null_updates")
NUMBERS: tuple[tuple[str, Callable[[Any], Any], float], ...] = (
    ("batch_interval", float, 0.0),
    ("commit_interval", float, 0.0),
    ("batch_rows", int, 1),
    ("max_keys", int, 1),
    ("bad_record_limit", int, 0),
    ("idle_interval", float, 0.0),
)
OPTIONS = {*ALIASES, *CHOICES, *TEXTS, *NAMES, "routes", "create_tables"}
OPTIONS |= {name for name, _, _ in NUMBERS}
NEEDS_KEY = (
    "sequence_by",
    "apply_as_deletes",
    "apply_as_truncates",
    "ignore_null_updates",
    "soft_deletes",
)


@dataclass(frozen=True)
class StreamOptions:
    """What a stream does with its changes, and how often it commits.

    Attributes:
        sink_id: names the stream in the table that it writes.
        keys: columns that tell a row; none where rows are only appended.
        sequence_by: columns that order the changes of a key; none for the source's own order.
        deletes: a condition on a change: it deletes the row.
        truncates: a condition on a change: it deletes all rows.
        columns: of the query that the table has; None for all but `excluded`.
        ignore_null_updates: columns whose null in a change leaves the row's value; True for all.
        scd_type: 1 keeps the last version of a row, 2 all of them.
        soft_deletes: column that takes the time of a delete, instead of the row's end.
        batch_interval, commit_interval: seconds.
        batch_rows: of the source in a batch, at most.
        sequence_numbers: of a batch whose changes do not go into one chunk of memory.
        delete_encoding: `position` for readers that refuse equality deletes, `copy_on_write` for
            those that refuse all.
        bad_records: what becomes of those that cannot be read; `bad_record_limit` of them in a
            run are too many.
        idle_interval: seconds between records of progress where nothing changes.
        commit_group: models of one source that are committed together.
        route_by: a column that names the table of a row; `routes` are those that are known, with
            what is different there; with `create_tables` others are made when they come up.
        on_no_transactions: what to do where the catalog cannot commit several tables at once.
    """

    sink_id: str
    keys: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    deletes: str | None = None
    truncates: str | None = None
    columns: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    ignore_null_updates: tuple[str, ...] | bool = False
    scd_type: int = 1
    soft_deletes: str | None = None
    batch_interval: float = 1.0
    commit_interval: float = 10.0
    batch_rows: int = 1_000_000
    max_keys: int = 2_000_000
    sequence_numbers: SequenceNumbers = "auto"
    delete_encoding: DeleteEncoding = "auto"
    bad_records: OnBadRecord = "stop"
    bad_record_limit: int = 1000
    idle_interval: float = 3600.0
    commit_group: str | None = None
    on_no_transactions: OnNoTransactions = "warn"
    route_by: str | None = None
    routes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    create_tables: bool = False


def named_as(options: StreamOptions, names: Sequence[str]) -> StreamOptions:
    """The options with columns in the letters in which the table has them."""
    known = {name.lower(): name for name in names}

    def spelled(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(known.get(name.lower(), name) for name in given)

    nulls = options.ignore_null_updates
    return replace(
        options,
        keys=spelled(options.keys),
        sequence_by=spelled(options.sequence_by),
        ignore_null_updates=nulls if isinstance(nulls, bool) else spelled(nulls),
    )


def parse_stream_options(model: Mapping[str, Any]) -> StreamOptions:
    """Read a model's config.

    Raises:
        CompilationError: names the model and lists every fault with its cure.
    """
    config = {k: v for k, v in dict(model["config"]).items() if v is not None}
    for alias, name in ALIASES.items():
        if alias in config:
            config.setdefault(name, config.pop(alias))
    if config.get("stored_as_scd_type") in ("1", "2"):
        config["stored_as_scd_type"] = int(config["stored_as_scd_type"])
    wrong = _wrong_types(config)
    faults = [*misspelled(config, sorted(OPTIONS)), *wrong.values()]
    config = {name: value for name, value in config.items() if name not in wrong}
    faults += [*_wrong_choices(config), *_wrong_combinations(config), *_wrong_routes(config)]
    numbers = {name: _number(config, name, kind, least, faults) for name, kind, least in NUMBERS}
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise CompilationError(f"The config of {model['unique_id']} has errors:\n{lines}")
    nulls = config.get("ignore_null_updates", False)
    return StreamOptions(
        sink_id=str(config.get("sink_id") or model["unique_id"]),
        keys=column_names(config.get("unique_key")),
        sequence_by=column_names(config.get("sequence_by")),
        deletes=config.get("apply_as_deletes"),
        truncates=config.get("apply_as_truncates"),
        columns=column_names(config["columns"]) if config.get("columns") else None,
        excluded=column_names(config.get("except")),
        ignore_null_updates=nulls if isinstance(nulls, bool) else column_names(nulls),
        scd_type=int(config.get("stored_as_scd_type", 1)),
        soft_deletes=config.get("soft_deletes"),
        sequence_numbers=config.get("sequence_numbers", "auto"),
        delete_encoding=config.get("delete_encoding", "auto"),
        bad_records=config.get("on_bad_record", "stop"),
        commit_group=config.get("commit_group"),
        on_no_transactions=config.get("on_no_transactions", "warn"),
        route_by=config.get("route_by"),
        routes={str(route).lower(): said for route, said in _routes(config).items()},
        create_tables=bool(config.get("create_tables")),
        **{name: value for name, value in numbers.items() if value is not None},
    )


def _wrong_types(config: Mapping[str, Any]) -> dict[str, str]:
    """Faults of options whose values are not of their kind."""
    wants = {
        name: what for name, what in TEXTS.items() if not isinstance(config.get(name, ""), str)
    }
    for name in NAMES:
        given = config.get(name, ())
        flag = name == "ignore_null_updates" and isinstance(given, bool)
        if not flag and not _are_names(given):
            wants[name] = "the name of a column, or a list of them"
    if not isinstance(config.get("create_tables", False), bool):
        wants["create_tables"] = "true or false"
    return {name: f"`{name}: {config[name]!r}` must be {what}" for name, what in wants.items()}


def _are_names(given: object) -> bool:
    # Nothing is nothing, in whatever form: dbt has an empty mapping where no columns are told.
    listed = given if isinstance(given, list | tuple) else [given] if given else []
    return all(isinstance(name, str) for name in listed)


def _wrong_choices(config: Mapping[str, Any]) -> list[str]:
    faults = []
    for name, choices in CHOICES.items():
        if name in config and config[name] not in choices:
            faults.append(must_be_one_of(name, config[name], choices))
    return faults


def _wrong_combinations(config: Mapping[str, Any]) -> list[str]:
    faults = []
    if not config.get("unique_key"):
        lacking = [name for name in NEEDS_KEY if config.get(name)]
        if config.get("stored_as_scd_type") == 2:
            lacking.append("stored_as_scd_type: 2")
        faults += [
            f"`{name}` needs a `unique_key`: without one, rows are appended" for name in lacking
        ]
    encoding = config.get("delete_encoding")
    if encoding in ("position", "copy_on_write") and config.get("sequence_by"):
        faults.append(
            f"`delete_encoding: {encoding}` does not go with `sequence_by`: equality deletes "
            "remember what was deleted, and when"
        )
    if config.get("columns") and config.get("except"):
        faults.append("`columns` and `except` exclude each other: give one of them")
    if config.get("stored_as_scd_type") == 2:
        if not config.get("sequence_by"):
            faults.append(
                "`stored_as_scd_type: 2` needs a `sequence_by`: versions begin at its value"
            )
        if len(column_names(config.get("sequence_by"))) > 1:
            faults.append("`stored_as_scd_type: 2` takes one column as `sequence_by`")
        faults += [
            f"`{name}` does not go with `stored_as_scd_type: 2`"
            for name in ("soft_deletes", "ignore_null_updates", "apply_as_truncates")
            if config.get(name)
        ]
    return faults


def _routes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    routes = config.get("routes") or {}
    return routes if isinstance(routes, Mapping) else dict.fromkeys(column_names(routes))


def _wrong_routes(config: Mapping[str, Any]) -> list[str]:
    if not config.get("route_by"):
        given = [name for name in ("routes", "create_tables") if config.get(name)]
        return [f"`{name}` needs a `route_by`: the column that names the table" for name in given]
    faults = []
    if config.get("commit_group"):
        faults.append("`route_by` and `commit_group` exclude each other: give one of them")
    for route, said in _routes(config).items():
        lower = str(route).lower()
        if not re.fullmatch(f"[{LETTERS}]+", lower) or lower == NO_ROUTE:
            faults.append(
                f"the route `{route}` cannot be in a table's name: a-z, 0-9 and _ can, and "
                f"{NO_ROUTE} is taken"
            )
        if unknown := set(said or {}) - {"unique_key", "columns", "except"}:
            faults.append(
                f"the route `{route}` has no {', '.join(sorted(unknown))}: it can have unique_key, "
                "columns and except, and the rest is the model's"
            )
    return faults


def _number(
    config: Mapping[str, Any],
    name: str,
    kind: Callable[[Any], Any],
    least: float,
    faults: list[str],
) -> Any:
    if name not in config:
        return None
    try:
        value = kind(config[name])
    except (TypeError, ValueError):
        value = None
    if value is None or isinstance(config[name], bool) or value < least:
        faults.append(f"`{name}: {config[name]}` is no number of at least {least:g}")
        return None
    return value


def column_names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, without backticks, each once."""
    names = [given] if isinstance(given, str) else list(given or ())
    return tuple(dict.fromkeys(str(name).replace("`", "") for name in names))
