"""What dbt and macros call for the functions of a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dbt.adapters.base import available
from dbt.adapters.base.meta import AdapterMeta

from dbt.adapters.iceberg_stream.sessions.functions import ProjectFunctions


class FunctionHooks(metaclass=AdapterMeta):
    """The part of the adapter that knows the functions of the project."""

    config: Any
    connections: Any

    if TYPE_CHECKING:

        def get_macro_resolver(self) -> Any:
            """Return dbt's manifest."""

    def open_functions(self) -> None:
        """Let the statements of all sessions call the functions of the project."""
        self.connections.functions = ProjectFunctions(
            lambda: getattr(self.get_macro_resolver(), "functions", None) or {},
            self._compile_node,
            local=self.connections.credentials.method == "embedded",
        )

    def prepare(self, sql: str) -> str:
        """Return a query with what it calls of the project's functions, in this thread's session.

        Args:
            sql: the query.

        Raises:
            DbtDatabaseError: Spark refuses a function.
            CompilationError: a function or a call is wrong.
        """
        with self.connections.exception_handler(sql):
            return str(self.connections.prepare(sql))

    @available.parse(lambda *a, **k: "")
    def get_function_check_sql(self, model: Mapping[str, Any]) -> str:
        """Return a statement that checks a function; raise one error for all that is wrong."""
        return str(self.connections.functions.get_check_sql(str(model["unique_id"])))

    def _compile_node(self, node: Any) -> None:
        """Compile a function, which dbt does only if it is selected."""
        from dbt.compilation import Compiler

        # Otherwise dbt leaves out the queries of ephemeral models the second time.
        node.extra_ctes, node.extra_ctes_injected = [], False
        Compiler(self.config).compile_node(node, self.get_macro_resolver(), {}, write=False)
