"""Sources that are no Iceberg tables: statements read them as temporary views of their session."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.errors.redaction import holds_secret
from dbt.adapters.iceberg_stream.errors.spark import StatementError
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be, must_be_one_of
from dbt.adapters.iceberg_stream.sql.quoting import quote

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.engines.session import Session

PREFIX = "dbt_external_"
VIEW = re.compile(rf"\b{PREFIX}[0-9a-f]{{16}}\b")
# A table of a catalog, whose `external` only describes it.
ICEBERG = "iceberg"
JDBC = "jdbc"
FORMATS = ("avro", "csv", "delta", JDBC, "json", "orc", "parquet", "text", "xml")
SECRET = re.compile(r"pass|pwd|secret|token|credential|access.?key", re.IGNORECASE)
ENV_VAR = "env_var"


@dataclass(frozen=True)
class ExternalSource:
    """What the property `external` of a source says.

    Attributes:
        node: the source's id, for messages.
        format: Spark's name of the format.
        location: address or folder of the files; None for `jdbc`.
        options: of Spark's reader; a mapping `{env_var: NAME}` stands for a secret.
        columns: DDL of the columns; None to let Spark find them.
    """

    node: str
    format: str
    location: str | None
    options: Mapping[str, Any]
    columns: str | None

    @property
    def view(self) -> str:
        """The name of the temporary view, which another definition does not share."""
        text = json.dumps(vars(self), sort_keys=True, default=str)
        return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]

    def reader_options(self) -> dict[str, str]:
        """Return the options with their secrets.

        Raises:
            StatementError: an environment variable is not set.
        """
        options = {}
        for name, value in self.options.items():
            if not isinstance(value, Mapping):
                options[name] = str(value).lower() if isinstance(value, bool) else str(value)
                continue
            variable = str(value[ENV_VAR])
            if variable not in os.environ:
                raise StatementError(
                    f"The option `{name}` of {self.node} is in the environment variable "
                    f"{variable}, which is not set. Set it for dbt."
                )
            options[name] = os.environ[variable]
        return options


class ExternalSources:
    """The external sources that SQL of this process may name. Thread-safe.

    Args:
        project_root: the folder that relative locations begin at.
    """

    def __init__(self, project_root: Path) -> None:
        self._project_root = project_root
        self._lock = threading.Lock()
        self._sources: dict[str, ExternalSource] = {}

    def add(self, node: Any) -> str | None:
        """Return the temporary view of a source; None for a table of a catalog.

        Args:
            node: the source's node in dbt's graph.

        Raises:
            CompilationError: lists all errors of `external`.
        """
        source = parse_external(node, self._project_root)
        if source is None:
            return None
        with self._lock:
            self._sources[source.view] = source
        return source.view

    def create_views(self, session: Session, sql: str) -> None:
        """Create the temporary views that a statement reads, with the files that are there now.

        Args:
            session: the session that runs the statement.
            sql: the statement.

        Raises:
            StatementError: Spark cannot read a source, or the statement would keep one.
        """
        if not (names := set(VIEW.findall(sql))):
            return
        from dbt.adapters.iceberg_stream.sql.statements import classify

        statement = classify(sql)
        for name in sorted(names):
            with self._lock:
                source = self._sources.get(name)
            if source is None:
                continue
            if statement.on_view and statement.writes:
                raise StatementError(
                    f"The view reads {source.node}, which is no table of a catalog, so other "
                    "programs could not read the view. Materialize the model as `table`."
                )
            session.register_source(
                name, source.format, source.location, source.reader_options(), source.columns
            )


def parse_external(node: Any, project_root: Path) -> ExternalSource | None:
    """Return the external source of a node; None if it is a table of a catalog.

    Args:
        node: a node of dbt's graph.
        project_root: the folder that relative locations begin at.

    Raises:
        CompilationError: lists all errors of `external`.
    """
    if getattr(node, "resource_type", None) != "source" or getattr(node, "external", None) is None:
        return None
    external: Mapping[str, Any] = node.external.to_dict(omit_none=True)
    # `using` is the key of the package dbt-external-tables.
    kind = str(external.get("file_format") or external.get("using") or ICEBERG).lower()
    if kind == ICEBERG:
        return None
    location, options = external.get("location"), external.get("options") or {}
    errors = [] if isinstance(options, Mapping) else [must_be("options", options, "a mapping")]
    if kind not in FORMATS:
        errors.append(must_be_one_of("file_format", kind, FORMATS))
    elif not location and kind != JDBC:
        errors.append("`location` is missing: set the address or the folder of the files")
    errors += _option_errors(options) if isinstance(options, Mapping) else []
    if errors:
        lines = "\n".join(f"  - {error}" for error in errors)
        raise CompilationError(f"`external` of {node.unique_id} has errors:\n{lines}")
    if location and "://" not in location:
        location = str(project_root / location)
    return ExternalSource(str(node.unique_id), kind, location, options, _columns(node.columns))


def _option_errors(options: Mapping[str, Any]) -> list[str]:
    errors = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            if set(value) != {ENV_VAR}:
                errors.append(f"`{name}` must be a text, or `{{{ENV_VAR}: NAME}}` for a secret")
        elif SECRET.search(str(name)) or holds_secret(str(value)):
            errors.append(
                f"`{name}` holds a secret, and dbt writes sources into its artifacts. Put it into "
                f"an environment variable, and write `{name}: {{{ENV_VAR}: NAME}}`"
            )
    return errors


def _columns(columns: Mapping[str, Any]) -> str | None:
    """Return the DDL of columns if all have types."""
    types = {column.name: column.data_type for column in columns.values()}
    if not types or not all(types.values()):
        return None
    return ", ".join(f"{quote(name)} {kind}" for name, kind in types.items())
