"""Digests of all that determines the rows of a model beside the tables that it reads."""

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
# What a query can get from elsewhere than its text, macros and variables while it is compiled.
DYNAMIC = re.compile(
    r"\b(adapter\s*\.|execute_macro|flags\s*\.|graph\b|invocation_args_dict|invocation_id|"
    r"load_relation|load_result|modules\s*\.|run_query|run_started_at|selected_resources|"
    r"statement\b|thread_id)"
)
# Their versions stand for their macros.
INTERNAL = {"dbt", "dbt_spark", "dbt_iceberg_stream"}
PREFIXES = ("iceberg_stream__", "spark__", "default__")
# Macros that dbt finds by the values of configs.
BY_CONFIG = re.compile(r"get_incremental_|snapshot_|materialization_")
LITERAL = r"\s*\(\s*(?:(['\"])([^'\"]+)\1)?"
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
        self._overrides = self._closure(self._find_overrides())

    def parts(
        self, model: Mapping[str, Any], root: Path, variables: Mapping[str, Any]
    ) -> tuple[dict[str, str], bool]:
        """Return what determines a model's rows beside its inputs.

        Args:
            model: the model's node in dbt's graph.
            root: folder of the project, for seeds.
            variables: that the model sees.

        Returns:
            Digests by what they are of, and whether they determine every query of the model.
        """
        raw = str(model.get("raw_code") or "")
        macros = self._closure(map(str, (model.get("depends_on") or {}).get("macros") or []))
        text = "\n".join([raw, *macros, *self._overrides])
        parts = {
            "its code": digest(raw),
            "a macro that it uses": digest(macros),
            "a macro that overrides one of dbt or the adapter": digest(self._overrides),
            "a variable that it uses": digest(_used(VARIABLE, text, variables)),
            "an environment variable that it uses": digest(_used(ENVIRONMENT, text, os.environ)),
            "its config": digest(_relevant_config(model)),
            "its name": digest([model.get(key) for key in ("database", "schema", "alias")]),
            **self._everywhere,
        }
        if model.get("resource_type") == "seed":
            folder = Path(str(model.get("root_path") or root))
            parts["its file"] = _file_digest(folder / str(model["original_file_path"]))
        return parts, DYNAMIC.search(text) is None

    def _find_overrides(self) -> Iterator[str]:
        """Iterate over macros of the project that dbt or the adapter may call."""
        internal = (m.name for m in self._macros.values() if m.package_name in INTERNAL)
        bare = set(map(_without_prefix, internal))
        for unique_id, macro in self._macros.items():
            if macro.package_name in INTERNAL:
                continue
            if _without_prefix(macro.name) in bare or BY_CONFIG.match(_without_prefix(macro.name)):
                yield unique_id

    def _closure(self, ids: Iterable[str]) -> list[str]:
        """Return the texts of macros, and of those that they call, without dbt's own."""
        pending, texts = list(ids), {}
        while pending:
            macro = self._macros.get(unique_id := pending.pop())
            if unique_id in texts or macro is None or macro.package_name in INTERNAL:
                continue
            texts[unique_id] = str(macro.macro_sql)
            pending += macro.depends_on.macros
        return [texts[unique_id] for unique_id in sorted(texts)]


def _used(call: re.Pattern[str], text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of what a text calls by name; all values if it computes a name."""
    names = {match[2] for match in call.finditer(text)}
    return {name: values.get(name) for name in (values if None in names else names)}


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
