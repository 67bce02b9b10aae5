"""Digests of what determines a model's rows beside its compiled query and the tables it reads.

The compiled query has the results of the macros and variables that the model uses.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dbt.adapters.iceberg_stream.unchanged.inputs import digest

# Configs that change neither the rows nor the form of a relation.
IRRELEVANT_CONFIGS = {
    *("access", "docs", "enabled", "event_time", "freshness", "full_refresh", "group"),
    *("maintenance", "meta", "post-hook", "pre-hook", "skip_unchanged", "tag_on_success", "tags"),
    *("warn_row_drop",),
}
# Configs with parts of SQL.
EXPRESSIONS = (
    *("incremental_predicates", "predicates", "matched_condition", "not_matched_condition"),
    *("not_matched_by_source_condition", "dbt_valid_to_current", "updated_at", "check_cols"),
)
# Their versions stand for their macros.
INTERNAL = {"dbt", "dbt_spark", "dbt_iceberg_stream"}
PREFIXES = ("iceberg_stream__", "spark__", "default__")
# Macros that dbt finds by the values of configs.
BY_CONFIG = re.compile(r"get_incremental_(\w+)_sql|snapshot_(\w+)_strategy")
# Macros of dbt and the adapter that make what a table consists of.
MAKES_ROWS = re.compile(
    r"(get_)?create_(table|view)|get_\w*(merge|insert|delete)|(build_)?snapshot_|load_csv"
)
# Macros whose results are the names that a record has.
NAMES = re.compile(r"generate_(alias|database|schema)_name")
# How the names of environment variables for dbt begin.
DBT = "DBT_"
LITERAL = r"\s*\(\s*(?:(['\"])([^'\"]+)\1\s*[,)])?"
VARIABLE, ENVIRONMENT = re.compile(rf"\bvar{LITERAL}"), re.compile(rf"\benv_var{LITERAL}")


class ProjectCode:
    """The macros and variables of a project.

    Args:
        macros: dbt's macros by their ids.
        everywhere: what determines the rows of every model: versions, settings of the engine.
    """

    def __init__(
        self,
        macros: Mapping[str, Any],
        everywhere: Mapping[str, Any],
    ) -> None:
        self._macros = macros
        self._everywhere = {part: digest(value) for part, value in everywhere.items()}
        self._override_ids = list(self._find_overrides())
        self._overrides = list(self._closure(self._override_ids).values())

    def parts(
        self, model: Mapping[str, Any], root: Path, variables: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return digests of what determines a model's rows beside its query, by what they are of.

        Args:
            model: the model's node in dbt's graph.
            root: folder of the project, for seeds.
            variables: that the model sees.
        """
        text = "\n".join(self._overrides)
        environment = {key: value for key, value in os.environ.items() if key.startswith(DBT)}
        parts = {
            "a macro that overrides one of dbt or the adapter": digest(self._overrides),
            "a variable of such a macro": digest(_used(VARIABLE, text, variables, variables)),
            "an environment variable of such a macro": digest(
                _used(ENVIRONMENT, text, os.environ, environment)
            ),
            "its config": digest(_relevant_config(model)),
            "its name": digest([model.get(key) for key in ("database", "schema", "alias")]),
            **self._everywhere,
        }
        if model.get("resource_type") == "seed":
            folder = Path(str(model.get("root_path") or root))
            parts["its file"] = _file_digest(folder / str(model["original_file_path"]))
        return parts

    def override_of_rows(self, config: Mapping[str, Any]) -> str | None:
        """Return the name of a macro of the project that makes a model's rows; None if none does.

        Such a macro may read anything.

        Args:
            config: the model's config.
        """
        for name in (self._macros[unique_id].name for unique_id in self._override_ids):
            bare = _without_prefix(name)
            if match := BY_CONFIG.fullmatch(bare):
                strategies = (config.get("incremental_strategy"), config.get("strategy"))
                named = match[1] or match[2]
                if named in strategies or named in ("default", "merge"):
                    return str(name)
            elif MAKES_ROWS.match(bare):
                return str(name)
        return None

    def _find_overrides(self) -> Iterator[str]:
        """Iterate over macros of the project that dbt or the adapter may call."""
        internal = (m.name for m in self._macros.values() if m.package_name in INTERNAL)
        bare = set(map(_without_prefix, internal))
        for unique_id, macro in self._macros.items():
            name = _without_prefix(macro.name)
            if macro.package_name in INTERNAL or NAMES.fullmatch(name):
                continue
            if name in bare or BY_CONFIG.fullmatch(name) or name.startswith("materialization_"):
                yield unique_id

    def _closure(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the texts of macros, and of those that they call, without dbt's own, by id."""
        pending, texts = list(ids), {}
        while pending:
            macro = self._macros.get(unique_id := pending.pop())
            if unique_id in texts or macro is None or macro.package_name in INTERNAL:
                continue
            texts[unique_id] = str(macro.macro_sql)
            pending += macro.depends_on.macros
        return dict(sorted(texts.items()))


def variable_config(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a config with SQL whose value may change from run to run, and the part that does.

    Args:
        config: a model's config.
    """
    from dbt.adapters.iceberg_stream.sql.repeatable import variable_part

    for key in EXPRESSIONS:
        value = config.get(key)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (part := variable_part(text)):
                return key, part
    return None


def _used(
    call: re.Pattern[str], text: str, values: Mapping[str, Any], computed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of what a text calls by name, with `computed` if it computes a name."""
    names = {match[2] for match in call.finditer(text)}
    used = {name: values.get(name) for name in names if name is not None}
    return {**computed, **used} if None in names else used


def _relevant_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configs that matter, and the documentation if the table keeps it."""
    config = dict(model["config"])
    relevant = {k: v for k, v in config.items() if k not in IRRELEVANT_CONFIGS}
    hooks = [hook.get("sql") for key in ("pre-hook", "post-hook") for hook in config.get(key) or []]
    columns = model.get("columns") or {}
    documented = any((config.get("persist_docs") or {}).values())
    if documented:
        comments = {name: column.get("description") for name, column in columns.items()}
        relevant["descriptions"] = [model.get("description"), comments]
    if (config.get("contract") or {}).get("enforced"):
        keys = ("name", "data_type", "constraints", "quote")
        relevant["columns"] = [[c.get(key) for key in keys] for c in columns.values()]
        relevant["constraints"] = model.get("constraints")
    return {**relevant, "hooks": hooks}


def _without_prefix(name: str) -> str:
    return next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
