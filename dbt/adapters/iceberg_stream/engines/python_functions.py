"""Python functions of a project, as Spark's workers run them.

Worker code: the workers get this module by value, and of the function its text only. So packages
that it imports are needed there, and not where dbt runs.
"""

from __future__ import annotations

from typing import Any


class MissingPackage(ImportError):
    """The Python of Spark's workers lacks a package that a function imports."""


class PythonFunction:
    """A scalar function: called with the values of a row.

    Args:
        name: the function's name in statements, for messages.
        path: the file, for tracebacks.
        source: the file's text.
        entry_point: name of the function in the file.
    """

    def __init__(self, name: str, path: str, source: str, entry_point: str) -> None:
        self.name = name
        self.path = path
        self.source = source
        self.entry_point = entry_point
        self._entry: Any = None

    def __call__(self, *values: Any) -> Any:
        return self.entry()(*values)

    def entry(self) -> Any:
        """Return what the entry point names; the file runs once in each task.

        Raises:
            MissingPackage: the worker lacks a package.
        """
        if self._entry is None:
            namespace: dict[str, Any] = {"__name__": f"dbt_{self.name}"}
            try:
                exec(compile(self.source, self.path, "exec"), namespace)
            except ImportError as error:
                raise MissingPackage(
                    f"The function `{self.name}` imports a package that the Python of Spark's "
                    f"workers lacks: {error}. Install it there."
                ) from error
            self._entry = namespace[self.entry_point]
        return self._entry


class PythonAggregate(PythonFunction):
    """An aggregate function: called with the values of a group, as one Arrow array per argument.

    The entry point is a class with the methods `accumulate` and `finish`.
    """

    def __call__(self, *columns: Any) -> Any:
        state = self.entry()()
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            state.accumulate(*values)
        return state.finish()
