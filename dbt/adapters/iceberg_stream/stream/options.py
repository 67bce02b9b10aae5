"""The options of a stream model; all errors of a config are reported in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.errors.wrong_values import misspelled, must_be, must_be_one_of

SequenceNumbers = Literal["auto", "one", "many"]
DeleteEncoding = Literal["auto", "equality", "position", "copy_on_write"]
OnBadRecord = Literal["stop", "dead_letters"]
OnNoTransactions = Literal["warn", "stop"]
RouteKeys = Literal["shared", "separate"]

# Characters of a route; rows with others in their route stay in the model's own table.
LETTERS = "a-z0-9_"
# Not a route: the table of this name is for records that cannot be read.
NO_ROUTE = "dead_letters"
# Databricks' names for the same options.
ALIASES = {"column_list": "columns", "except_column_list": "except"}
CHOICES = {
    "sequence_numbers": ("auto", "one", "many"),
    "on_bad_record": ("stop", "dead_letters"),
    "on_no_transactions": ("warn", "stop"),
    "stored_as_scd_type": (1, 2),
    "delete_encoding": ("auto", "equality", "position", "copy_on_write"),
    "route_keys": ("shared", "separate"),
}
# Options that are text, with what an error message asks for.
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
    ("max_indexed_rows", int, 0),
    ("deleted_keys_days", float, 0.0),
    ("bad_record_limit", int, 0),
    ("idle_interval", float, 0.0),
    ("compaction_share", float, 0.0),
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
    """The options of a stream model.

    Attributes:
        sink_id: names the stream in the table that it writes.
        keys: columns that identify a row (`unique_key`); none where rows are only appended.
        sequence_by: columns that order the changes of a key; none for the source's own order.
        deletes: condition on a change that deletes its row (`apply_as_deletes`).
        truncates: condition on a change that deletes all rows (`apply_as_truncates`).
        columns: columns of the query that the table has; None for all but `excluded`.
        excluded: columns of the query that the table does not have (`except`).
        ignore_null_updates: columns whose null in a change leaves the row's value; True for all.
        scd_type: 1 keeps the last version of a row, 2 all of them (`stored_as_scd_type`).
        soft_deletes: column that takes the time of a delete; the row stays.
        batch_interval: seconds between polls of an idle source.
        commit_interval: seconds between commits; sooner if many files are pending.
        batch_rows: rows of the source in a batch, at most.
        max_keys: keys that a batch with one data sequence number remembers, at most.
        max_indexed_rows: rows of the table, or of the partitions that changes reach, whose keys are
            indexed to delete rows by position, at most.
        deleted_keys_days: days for which deleted keys are kept, to leave out older changes
            (`sequence_by`).
        sequence_numbers: whether a batch has one data sequence number, or one for each chunk of
            its changes.
        delete_encoding: how deletes are written; `position` for readers that refuse equality
            deletes, `copy_on_write` for readers that refuse all delete files.
        bad_records: what happens to records that cannot be read (`on_bad_record`).
        bad_record_limit: records of one run that cannot be read, at most.
        idle_interval: seconds between records of progress while nothing changes.
        compaction_share: share of the run's time in which equality deletes are converted and small
            files are merged; by default 0.2 where keys are indexed, or `auto` would index them, and
            0 elsewhere.
        commit_group: group of models of one source that are committed together.
        on_no_transactions: what to do if the catalog cannot commit several tables at once.
        route_by: column that names the table of a row.
        routes: options that each route overrides, by the route in lower case.
        route_keys: whether a key has one row in all tables of the stream (`shared`), or one in each
            of them; None for what the source says.
        create_tables: whether routes that `routes` does not name get tables as well.
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
    max_indexed_rows: int = 100_000_000
    deleted_keys_days: float = 7.0
    sequence_numbers: SequenceNumbers = "auto"
    delete_encoding: DeleteEncoding = "auto"
    bad_records: OnBadRecord = "stop"
    bad_record_limit: int = 1000
    idle_interval: float = 3600.0
    compaction_share: float | None = None
    commit_group: str | None = None
    on_no_transactions: OnNoTransactions = "warn"
    route_by: str | None = None
    routes: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    route_keys: RouteKeys | None = None
    create_tables: bool = False

    @property
    def indexes_keys(self) -> bool:
        """Return whether a key index locates the rows that a batch deletes."""
        return bool(self.keys) and self.delete_encoding in ("auto", "position")

    @property
    def converts_deletes(self) -> bool:
        """Return whether the stream converts equality deletes if it has no key index."""
        if not self.keys or self.delete_encoding == "copy_on_write":
            return False
        # Whoever asks for `equality` has few readers, and does not want to read the table.
        by_default = self.delete_encoding == "auto"
        return by_default if self.compaction_share is None else self.compaction_share > 0


def with_table_spelling(options: StreamOptions, names: Sequence[str]) -> StreamOptions:
    """Return the options with column names spelled as the table spells them.

    Args:
        options: the model's options.
        names: columns of the table.
    """
    by_lower = {name.lower(): name for name in names}

    def spelled(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(by_lower.get(name.lower(), name) for name in columns)

    nulls = options.ignore_null_updates
    return replace(
        options,
        keys=spelled(options.keys),
        sequence_by=spelled(options.sequence_by),
        ignore_null_updates=nulls if isinstance(nulls, bool) else spelled(nulls),
        soft_deletes=spelled((options.soft_deletes,))[0] if options.soft_deletes else None,
    )


def parse_stream_options(model: Mapping[str, Any]) -> StreamOptions:
    """Read the options of a model.

    Args:
        model: the model's node in dbt's graph.

    Raises:
        CompilationError: the config has errors; names the model and lists all of them.
    """
    config = {k: v for k, v in dict(model["config"]).items() if v is not None}
    for alias, name in ALIASES.items():
        if alias in config:
            config.setdefault(name, config.pop(alias))
    if config.get("stored_as_scd_type") in ("1", "2"):
        config["stored_as_scd_type"] = int(config["stored_as_scd_type"])
    type_errors = _type_errors(config)
    errors = [*misspelled(config, sorted(OPTIONS)), *type_errors.values()]
    config = {name: value for name, value in config.items() if name not in type_errors}
    errors += [*_choice_errors(config), *_combination_errors(config), *_route_errors(config)]
    numbers = {name: _number(config, name, kind, least, errors) for name, kind, least in NUMBERS}
    if (numbers["compaction_share"] or 0.0) > 1.0:
        errors.append(must_be("compaction_share", config["compaction_share"], "at most 1"))
    if errors:
        lines = "\n".join(f"  - {error}" for error in errors)
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
        routes={str(route).lower(): overrides for route, overrides in _routes(config).items()},
        route_keys=config.get("route_keys"),
        create_tables=bool(config.get("create_tables")),
        **{name: value for name, value in numbers.items() if value is not None},
    )


def _type_errors(config: Mapping[str, Any]) -> dict[str, str]:
    """Return errors of values that have the wrong type, by the option."""
    expected = {
        name: what for name, what in TEXTS.items() if not isinstance(config.get(name, ""), str)
    }
    for name in NAMES:
        value = config.get(name, ())
        flag = name == "ignore_null_updates" and isinstance(value, bool)
        if not flag and not _are_names(value):
            expected[name] = "the name of a column, or a list of them"
    if not isinstance(config.get("create_tables", False), bool):
        expected["create_tables"] = "true or false"
    return {name: must_be(name, config[name], what) for name, what in expected.items()}


def _are_names(value: object) -> bool:
    # dbt has an empty mapping where `columns` is not set, so any empty value means no names.
    names = value if isinstance(value, list | tuple) else [value] if value else []
    return all(isinstance(name, str) for name in names)


def _choice_errors(config: Mapping[str, Any]) -> list[str]:
    errors = []
    for name, choices in CHOICES.items():
        if name in config and config[name] not in choices:
            errors.append(must_be_one_of(name, config[name], choices))
    return errors


def _combination_errors(config: Mapping[str, Any]) -> list[str]:
    errors = []
    if not config.get("unique_key"):
        without_key = [name for name in NEEDS_KEY if config.get(name)]
        if config.get("stored_as_scd_type") == 2:
            without_key.append("stored_as_scd_type: 2")
        errors += [
            f"`{name}` needs a `unique_key`: without one, rows are appended" for name in without_key
        ]
    if config.get("columns") and config.get("except"):
        errors.append("`columns` and `except` exclude each other: set one of them")
    if config.get("stored_as_scd_type") == 2:
        if not config.get("sequence_by"):
            errors.append(
                "`stored_as_scd_type: 2` needs a `sequence_by`: versions begin at its value"
            )
        if len(column_names(config.get("sequence_by"))) > 1:
            errors.append("`stored_as_scd_type: 2` takes one column as `sequence_by`")
        errors += [
            f"`{name}` cannot be used with `stored_as_scd_type: 2`"
            for name in ("soft_deletes", "ignore_null_updates", "apply_as_truncates")
            if config.get(name)
        ]
    return errors


def _routes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    routes = config.get("routes") or {}
    return routes if isinstance(routes, Mapping) else dict.fromkeys(column_names(routes))


def _route_errors(config: Mapping[str, Any]) -> list[str]:
    if not config.get("route_by"):
        names = [name for name in ("routes", "create_tables", "route_keys") if config.get(name)]
        return [f"`{name}` needs a `route_by`: the column that names the table" for name in names]
    errors = []
    if config.get("commit_group"):
        errors.append("`route_by` and `commit_group` exclude each other: set one of them")
    shared = config.get("route_keys") == "shared"
    if shared and (not config.get("unique_key") or config.get("ignore_null_updates")):
        errors.append(
            "`route_keys: shared` needs a `unique_key`, and changes that have their route: remove "
            "`ignore_null_updates`"
        )
    for route, overrides in _routes(config).items():
        if shared and "unique_key" in (overrides or {}):
            errors.append(f"the route `{route}` has a `unique_key`, but `route_keys` is shared")
        lower = str(route).lower()
        if not re.fullmatch(f"[{LETTERS}]+", lower) or lower == NO_ROUTE:
            errors.append(
                f"the route `{route}` cannot be part of a table's name: use a-z, 0-9 and _, and "
                f"not {NO_ROUTE}, which is reserved"
            )
        if unknown := set(overrides or {}) - {"unique_key", "columns", "except"}:
            errors.append(
                f"the route `{route}` has no {', '.join(sorted(unknown))}: it can have unique_key, "
                "columns and except; set the others for the model"
            )
    return errors


def _number(
    config: Mapping[str, Any],
    name: str,
    kind: Callable[[Any], Any],
    least: float,
    errors: list[str],
) -> Any:
    if name not in config:
        return None
    try:
        value = kind(config[name])
    except (TypeError, ValueError, OverflowError):
        value = None
    # Not a number is not less, either.
    if value is None or isinstance(config[name], bool) or not value >= least:
        errors.append(must_be(name, config[name], f"a number of at least {least:g}"))
        return None
    return value


def column_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of an option, without backticks and duplicates."""
    names = [value] if isinstance(value, str) else list(value or ())
    return tuple(dict.fromkeys(str(name).replace("`", "") for name in names))
