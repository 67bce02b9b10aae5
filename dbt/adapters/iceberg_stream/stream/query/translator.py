"""What the translations of single functions need of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.inputs import Inputs
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported, Value


class Translator(Protocol):
    """Translates expressions of SQL to functions of PyArrow.

    Attributes:
        inputs: what the expressions depend on is added to it.
    """

    inputs: Inputs

    def value(self, node: exp.Expr) -> Value:
        """Translate an expression.

        Args:
            node: the expression.

        Raises:
            Unsupported: Spark has to compute it.
        """

    def operands(self, *nodes: exp.Expr) -> list[Value]:
        """Translate expressions that meet, such as both sides of `=`, and cast them to one type.

        Args:
            nodes: the expressions.

        Raises:
            Unsupported: Spark has to compute one of them, or their types do not meet.
        """

    def unify(self, nodes: Sequence[exp.Expr], values: Sequence[Value]) -> list[Value]:
        """Cast the values of expressions that meet to one type.

        Args:
            nodes: the expressions, without parentheses.
            values: their values.

        Raises:
            Unsupported: their types do not meet.
        """


# Translates one kind of expression.
Translate = Callable[[Translator, Any], Value]
# Translates a function that sqlglot leaves as it is written: its arguments.
TranslateCall = Callable[[Translator, list[exp.Expr]], Value]


def of_type(translator: Translator, node: exp.Expr, *kinds: pa.DataType) -> Value:
    """Translate an expression that has one of some types.

    Args:
        translator: translates it.
        node: the expression.
        kinds: the types.

    Raises:
        Unsupported: it has another type, or Spark has to compute it.
    """
    value = translator.value(node)
    if value.type not in kinds:
        raise Unsupported
    return value


def text(translator: Translator, node: exp.Expr) -> Value:
    """Translate an expression that is a text."""
    return of_type(translator, node, pa.string())
