"""Small faults in the source, made by cosmic-ray's operators, in memory only."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[2]
PACKAGE = "dbt/adapters/iceberg_stream"
MODULES = (
    "tables/files/*.py",
    "tables/commit/*.py",
    "tables/merge/rows.py",
    "tables/merge/file_rewrite.py",
    "tables/merge/file_task.py",
    "stream/row_deltas/*.py",
)
COMPARISONS = (
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
    *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
)
ARITHMETIC = (
    *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Div_Mul", "Mod_Mul", "Pow_Mul"),
    *("BitOr_BitAnd", "BitAnd_BitOr", "LShift_RShift", "RShift_LShift"),
)
OPERATORS = (
    *("AddNot", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("NumberReplacer", "ZeroIterationForLoop", "ExceptionReplacer", "RemoveDecorator"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *(f"ReplaceComparisonOperator_{change}" for change in COMPARISONS),
    *(f"ReplaceBinaryOperator_{change}" for change in ARITHMETIC),
)


class ReplaceMembership(Operator):
    """`in` becomes `not in` and the reverse, which cosmic-ray's own comparisons leave out."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        compares = node.parent is not None and node.parent.type == "comparison"
        if compares and (node.type == "comp_op" or getattr(node, "value", None) == "in"):
            text = node.get_code(include_prefix=False)
            if text in ("in", "not in"):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        text = node.get_code(include_prefix=False)
        other = "not in" if text == "in" else "in"
        return parso.python.tree.Keyword(other, node.start_pos, prefix=" ")

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


@dataclass(frozen=True)
class Mutant:
    """One fault: in which module and statement, and the module's source with it."""

    module: str
    line: int
    source: str
    removed: str
    added: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.removed}\n    + {self.added}"


@dataclass(frozen=True)
class Module:
    """A module whose faults tests should notice; its path is relative to the package."""

    path: str

    @property
    def file(self) -> Path:
        return ROOT / PACKAGE / self.path

    @property
    def name(self) -> str:
        return f"{PACKAGE}/{self.path}".removesuffix(".py").replace("/", ".")

    @cached_property
    def source(self) -> str:
        return self.file.read_text()

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.source)

    def mutants(self) -> Iterator[Callable[[], Mutant | None]]:
        """What makes each mutant, which takes a while; None for one that cannot be made.

        Annotations are left alone, which no one evaluates.
        """
        for operator, number, line, column in self._positions():
            if not self._in_annotation(line, column):
                yield partial(self._mutant, operator, number, line)

    def _mutant(self, operator: Operator, number: int, line: int) -> Mutant | None:
        try:
            made = mutate_code(self.source, operator, number)
        except AttributeError:
            return None  # exceptions whose names have dots
        assert made is not None
        return Mutant(self.path, line, made, *_changed(self.source, made))

    def statement(self, line: int) -> range:
        """Lines of the innermost statement there; of one that holds others, its head."""
        lines = range(line, line + 1)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                body = getattr(node, "body", None)
                end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
                if line < end:
                    lines = range(node.lineno, end)
        return lines

    def _positions(self) -> Iterator[tuple[Operator, int, int, int]]:
        operators = [get_operator(f"core/{name}")() for name in OPERATORS]
        for operator in [*operators, ReplaceMembership()]:
            number = 0
            for node in _nodes(parso.parse(self.source)):
                for (line, column), _ in operator.mutation_positions(node):
                    yield operator, number, line, column
                    number += 1

    @cached_property
    def _annotations(self) -> list[ast.expr]:
        annotations: list[ast.expr | None] = []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.AnnAssign | ast.arg):
                annotations.append(node.annotation)
            if isinstance(node, ast.FunctionDef):
                annotations.append(node.returns)
        return [node for node in annotations if node is not None]

    def _in_annotation(self, line: int, column: int) -> bool:
        return any(
            (node.lineno, node.col_offset)
            <= (line, column)
            < (node.end_lineno or 0, node.end_col_offset or 0)
            for node in self._annotations
        )


def modules() -> list[Module]:
    """The modules that are mutated."""
    package = ROOT / PACKAGE
    files = [file for pattern in MODULES for file in sorted(package.glob(pattern))]
    return [Module(str(file.relative_to(package))) for file in files if file.stat().st_size]


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _changed(before: str, after: str) -> tuple[str, str]:
    """The lines that differ."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    gone, new = (
        " ".join(line[2:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return gone, new
