"""What a model's rows depend on, in the words of `skip_unchanged`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dbt.adapters.iceberg_stream.unchanged.code import variable_config
from dbt.adapters.iceberg_stream.unchanged.inputs import UnknownInputs

READING_VERBS = {"select", "values", "with", "set", "show", "describe", "explain", ""}
SET_VARIABLE = re.compile(r"\s*set\s+(var|variable)\b", re.IGNORECASE)
# What dbt writes at the end of a Python model's code: names by what the code calls.
PYTHON_READS = re.compile(r"^    (refs|sources) = (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class ModelQuery:
    """A model's query.

    Attributes:
        text: all that Spark or Python gets.
        reading: SQL that reads what the model reads; empty if it reads nothing.
        reads_own: whether the model may read its own table beside that.
    """

    text: str
    reading: str
    reads_own: bool = False


# A seed reads its file only.
NO_QUERY = ModelQuery("", "")


def require_repeatable(model: Mapping[str, Any]) -> None:
    """Check that a model's rows depend on its query alone.

    Args:
        model: the model's node in dbt's graph.

    Raises:
        UnknownInputs: they do not.
    """
    config = model["config"]
    if model.get("language") == "python" and not config.get("deterministic"):
        raise UnknownInputs("it is a Python model without `deterministic: true`")
    if config.get("incremental_strategy") == "microbatch":
        raise UnknownInputs("its batches depend on the current time")
    if config.get("sql_header"):
        raise UnknownInputs("it has a `sql_header`")
    for key in ("pre-hook", "post-hook"):
        for hook in config.get(key) or []:
            if may_write(str(hook.get("sql") or "")):
                raise UnknownInputs("it has hooks that may write")
    if variable := variable_config(config):
        raise UnknownInputs(f"its config `{variable[0]}` may change with `{variable[1]}`")


def may_write(hook: str) -> bool:
    """Return whether a hook may change anything; one with Jinja may.

    Args:
        hook: its statements.
    """
    from dbt.adapters.iceberg_stream.sql.statements import classify, split

    if "{{" in hook or "{%" in hook:
        return True
    return any(
        (statement := classify(text)).writes
        or statement.verb not in READING_VERBS
        or SET_VARIABLE.match(text) is not None
        for text in split(hook)
        if text.strip()
    )


def python_query(model: Mapping[str, Any]) -> ModelQuery:
    """Return the query of a Python model, which reads with `dbt.ref`, `dbt.source`, `dbt.this`.

    Args:
        model: the model's node in dbt's graph, compiled.
    """
    code = str(model["compiled_code"])
    # The model's own code comes before, and may have such a line.
    last = dict(PYTHON_READS.findall(code))
    names = {name for text in last.values() for name in json.loads(text).values()}
    reading = f"select 1 from {', '.join(sorted(names))}" if names else "select 1"
    reads_own = re.search(r"\bthis\b", str(model.get("raw_code"))) is not None
    return ModelQuery(code, reading, reads_own)
