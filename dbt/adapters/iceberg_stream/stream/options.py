"""The options of a stream model; all errors of a config are reported in one message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
REMOVED = ("sequence_numbers", "max_keys", "idle_interval")
A_CONDITION, A_COLUMN = "a condition on the query's columns, as text", "the name of a column"
# Returns the value of an option, given its name and what the config has.
Parse = Callable[[str, Any], Any]


class WrongValue(ValueError):
    """An option has a wrong value; the message says what is right."""


@dataclass(frozen=True)
class Option:
    """An option of stream models.

    Attributes:
        field: of StreamOptions, which has its default.
        parse: returns its value; raises WrongValue.
        needs: the option without which it has no effect.
        why: what happens without that option.
        excludes: options that it cannot be used with.
    """

    field: str
    parse: Parse
    needs: str = ""
    why: str = ""
    excludes: tuple[str, ...] = ()


def _text(what: str) -> Parse:
    def parse(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValue(must_be(name, value, what))
        return value

    return parse


def _names(name: str, value: Any) -> tuple[str, ...]:
    # dbt has an empty mapping where `columns` is not set, so any empty value means no names.
    names = value if isinstance(value, list | tuple) else [value] if value else []
    if not all(isinstance(one, str) for one in names):
        raise WrongValue(must_be(name, value, "the name of a column, or a list of them"))
    return column_names(names)


def _names_or_all(name: str, value: Any) -> tuple[str, ...] | bool:
    return value if isinstance(value, bool) else _names(name, value)


def _columns(name: str, value: Any) -> tuple[str, ...] | None:
    return _names(name, value) or None


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValue(must_be(name, value, "true or false"))
    return value


def _one_of(*choices: Any) -> Parse:
    by_text = {str(choice): choice for choice in choices}

    def parse(name: str, value: Any) -> Any:
        if value not in choices and value not in by_text:
            raise WrongValue(must_be_one_of(name, value, choices))
        return by_text[str(value)]

    return parse


def _number(kind: Callable[[Any], Any], least: float, most: float = math.inf) -> Parse:
    def parse(name: str, value: Any) -> Any:
        try:
            number = None if isinstance(value, bool) else kind(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        # Not a number is not less, either.
        if number is None or not number >= least:
            raise WrongValue(must_be(name, value, f"a number of at least {least:g}"))
        if number > most:
            raise WrongValue(must_be(name, value, f"at most {most:g}"))
        return number

    return parse


def _routes(name: str, value: Any) -> dict[str, Any]:
    routes = value if isinstance(value, Mapping) else dict.fromkeys(column_names(value))
    return {str(route).lower(): overrides for route, overrides in routes.items()}


KEY = "`{name}` needs a `unique_key`: without one, rows are appended"
ROUTE = "`{name}` needs a `route_by`: the column that names the table"
OPTIONS = {
    "unique_key": Option("keys", _names),
    "sequence_by": Option("sequence_by", _names, "unique_key", KEY),
    "apply_as_deletes": Option("deletes", _text(A_CONDITION), "unique_key", KEY),
    "apply_as_truncates": Option("truncates", _text(A_CONDITION), "unique_key", KEY),
    "columns": Option("columns", _columns, excludes=("except",)),
    "except": Option("excluded", _names),
    "ignore_null_updates": Option("ignore_null_updates", _names_or_all, "unique_key", KEY),
    "stored_as_scd_type": Option("scd_type", _one_of(1, 2)),
    "soft_deletes": Option("soft_deletes", _text(A_COLUMN), "unique_key", KEY),
    "batch_interval": Option("batch_interval", _number(float, 0.0)),
    "commit_interval": Option("commit_interval", _number(float, 0.0)),
    "batch_rows": Option("batch_rows", _number(int, 1)),
    "max_indexed_rows": Option("max_indexed_rows", _number(int, 0)),
    "deleted_keys_days": Option("deleted_keys_days", _number(float, 0.0)),
    "delete_encoding": Option(
        "delete_encoding", _one_of("auto", "equality", "position", "copy_on_write")
    ),
    "on_bad_record": Option("bad_records", _one_of("stop", "dead_letters")),
    "bad_record_limit": Option("bad_record_limit", _number(int, 0)),
    "compaction_share": Option("compaction_share", _number(float, 0.0, 1.0)),
    "sink_id": Option("sink_id", _text("a name")),
    "commit_group": Option("commit_group", _text("a name"), excludes=("route_by",)),
    "on_no_transactions": Option("on_no_transactions", _one_of("warn", "stop")),
    "route_by": Option("route_by", _text(A_COLUMN)),
    "routes": Option("routes", _routes, "route_by", ROUTE),
    "route_keys": Option("route_keys", _one_of("shared", "separate"), "route_by", ROUTE),
    "create_tables": Option("create_tables", _flag, "route_by", ROUTE),
}


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
    errors = misspelled(config, sorted((*OPTIONS, *ALIASES)))
    errors += [f"`{name}` is no option any more: remove it" for name in REMOVED if name in config]
    given: dict[str, Any] = {}
    for name in config.keys() & OPTIONS.keys():
        try:
            given[name] = OPTIONS[name].parse(name, config[name])
        except WrongValue as error:
            errors.append(str(error))
    errors += [*_combination_errors(given), *_version_errors(given), *_route_errors(given)]
    if errors:
        lines = "\n".join(f"  - {error}" for error in errors)
        raise CompilationError(f"The config of {model['unique_id']} has errors:\n{lines}")
    fields = {OPTIONS[name].field: value for name, value in given.items()}
    return StreamOptions(**{**fields, "sink_id": given.get("sink_id") or str(model["unique_id"])})


def _combination_errors(given: Mapping[str, Any]) -> Iterator[str]:
    for name, option in OPTIONS.items():
        if not given.get(name):
            continue
        if option.needs and not given.get(option.needs):
            yield option.why.format(name=name)
        for other in option.excludes:
            if given.get(other):
                yield f"`{name}` and `{other}` exclude each other: set one of them"


def _version_errors(given: Mapping[str, Any]) -> Iterator[str]:
    if given.get("stored_as_scd_type") != 2:
        return
    versions = "`stored_as_scd_type: 2`"
    if not given.get("unique_key"):
        yield KEY.format(name="stored_as_scd_type: 2")
    if not given.get("sequence_by"):
        yield f"{versions} needs a `sequence_by`: versions begin at its value"
    if len(given.get("sequence_by", ())) > 1:
        yield f"{versions} takes one column as `sequence_by`"
    for name in ("soft_deletes", "ignore_null_updates", "apply_as_truncates"):
        if given.get(name):
            yield f"`{name}` cannot be used with {versions}"


def _route_errors(given: Mapping[str, Any]) -> Iterator[str]:
    if not given.get("route_by"):
        return
    shared = given.get("route_keys") == "shared"
    if shared and (not given.get("unique_key") or given.get("ignore_null_updates")):
        yield (
            "`route_keys: shared` needs a `unique_key`, and changes that have their route: remove "
            "`ignore_null_updates`"
        )
    for route, overrides in given.get("routes", {}).items():
        if shared and "unique_key" in (overrides or {}):
            yield f"the route `{route}` has a `unique_key`, but `route_keys` is shared"
        if not re.fullmatch(f"[{LETTERS}]+", route) or route == NO_ROUTE:
            yield (
                f"the route `{route}` cannot be part of a table's name: use a-z, 0-9 and _, and "
                f"not {NO_ROUTE}, which is reserved"
            )
        if unknown := set(overrides or {}) - {"unique_key", "columns", "except"}:
            yield (
                f"the route `{route}` has no {', '.join(sorted(unknown))}: it can have unique_key, "
                "columns and except; set the others for the model"
            )


def column_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of an option, without backticks and duplicates."""
    names = [value] if isinstance(value, str) else list(value or ())
    return tuple(dict.fromkeys(str(name).replace("`", "") for name in names))
