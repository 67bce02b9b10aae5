"""The functions of a dbt project: how statements call them, and which ones a session needs."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.sql.quoting import quote

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.sessions.function_definition import Definition

logger = Logger()


@dataclass(frozen=True)
class Prepared:
    """A statement that Spark can run.

    Attributes:
        sql: the statement, with the expressions of SQL functions.
        python: the Python functions that it calls; the session must have them.
    """

    sql: str
    python: tuple[Definition, ...] = ()


class ProjectFunctions:
    """The functions of a project. Thread-safe.

    No catalog keeps them: each statement gets them from the project, whether they were built or
    not, so that a changed function counts at once.

    Args:
        nodes: returns the function nodes of dbt's manifest by their ids.
        compile_node: compiles a node in place.
        local: whether Spark's workers run in this environment.
    """

    def __init__(
        self,
        nodes: Callable[[], Mapping[str, Any]],
        compile_node: Callable[[Any], None],
        local: bool,
    ) -> None:
        self._nodes = nodes
        self._compile_node = compile_node
        self._local = local
        # Reentrant: compiling a function may run statements.
        self._lock = threading.RLock()
        self._definitions: dict[str, tuple[Any, str | None, Definition]] = {}
        # What another command has compiled may have other variables.
        self._compiled: set[str] = set()

    def prepare(self, sql: str) -> Prepared:
        """Return a statement with the functions that it calls.

        Args:
            sql: the statement.

        Raises:
            CompilationError: a function or a call is wrong, or a view calls a Python function.
        """
        if not (names := self._names()):
            return Prepared(sql)
        from dbt.adapters.iceberg_stream.sql.functions import FunctionError, calls, expand_calls
        from dbt.adapters.iceberg_stream.sql.statements import classify

        definitions: dict[str, Definition] = {}
        self._collect(sql, names, definitions)
        if not definitions:
            return Prepared(sql)
        try:
            expanded = expand_calls(
                sql, {name: definition.signature for name, definition in definitions.items()}
            )
        except FunctionError as error:
            raise CompilationError(str(error)) from error
        used = calls(expanded, definitions)
        python = tuple(definitions[name] for name in used if definitions[name].python)
        if python and (statement := classify(sql)).on_view and statement.writes:
            raise CompilationError(
                f"The view calls {quote(python[0].signature.name)}, a Python function. Views are "
                "read by other engines and sessions, which do not have it. Materialize the model "
                "as `table`, or write the function in SQL."
            )
        return Prepared(expanded, python)

    def get_check_sql(self, unique_id: str) -> str:
        """Return a statement that checks a function without running it.

        Args:
            unique_id: the function's id.

        Raises:
            CompilationError: the function has errors.
        """
        node = self._nodes()[unique_id]
        names = {candidate: name for name, candidate in self._names().items()}
        signature = self._define(names[unique_id], unique_id).signature
        required = str(node.config.get("runtime_version") or "")
        running = ".".join(platform.python_version_tuple()[:2])
        if signature.expression is None and required != running:
            logger.warning(
                f"{unique_id} has `runtime_version: {required}`, but Spark runs it with the "
                f"Python of its workers, {running}."
            )
        arguments = ", ".join(f"cast(null as {p.type})" for p in signature.parameters)
        return f"describe query select {quote(signature.name)}({arguments})"

    def _names(self) -> dict[str, str]:
        """Return the ids of all functions by their names in statements."""
        names: dict[str, str] = {}
        for unique_id, node in self._nodes().items():
            # With `--defer`, dbt gives a function the schema that it has in the other state.
            deferred = getattr(node, "defer_function", None)
            for schema, identifier in (
                (node.schema, node.identifier),
                *([(deferred.schema, deferred.identifier)] if deferred else []),
            ):
                other = names.setdefault(f"{schema}.{identifier}", unique_id)
                if other != unique_id:
                    raise CompilationError(
                        f"{other} and {unique_id} have the same name, {schema}.{identifier}. "
                        "Functions cannot be overloaded: rename one, or set its `schema`."
                    )
        return names

    def _collect(
        self, sql: str, names: Mapping[str, str], definitions: dict[str, Definition]
    ) -> None:
        """Add the functions that a text calls, and those that they call."""
        from dbt.adapters.iceberg_stream.sql.functions import mentioned

        for name in mentioned(sql, names):
            if name not in definitions:
                definition = self._define(name, names[name])
                definitions[name] = definition
                if definition.signature.expression is not None:
                    self._collect(definition.signature.expression.sql, names, definitions)

    def _define(self, name: str, unique_id: str) -> Definition:
        from dbt.adapters.iceberg_stream.sessions.function_definition import parse_function

        node = self._nodes()[unique_id]
        with self._lock:
            # The names of the tables that it reads change while the run stages them.
            if unique_id not in self._compiled or _reads_relations(node):
                self._compile_node(node)
                self._compiled.add(unique_id)
            cached, code, definition = self._definitions.get(name, (None, None, None))
            if cached is not node or code != node.compiled_code or definition is None:
                definition = parse_function(node.to_dict(omit_none=True), name, self._local)
                self._definitions[name] = (node, node.compiled_code, definition)
            return definition


def _reads_relations(node: Any) -> bool:
    return any(not unique_id.startswith("function.") for unique_id in node.depends_on.nodes)
