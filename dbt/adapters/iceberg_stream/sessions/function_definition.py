"""A function of the project, as its node in dbt's manifest defines it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dbt_common.exceptions import CompilationError
from packaging.requirements import InvalidRequirement, Requirement

from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate, PythonFunction
from dbt.adapters.iceberg_stream.sql.functions import (
    Expression,
    FunctionError,
    Parameter,
    Signature,
    parse_expression,
)

# dbt's type of functions that no YAML file describes.
NO_TYPE = "INVALID_TYPE"
STATE_METHODS = {"accumulate", "finish"}


@dataclass(frozen=True)
class Definition:
    """A checked function.

    Attributes:
        signature: how statements call it.
        python: the code of a Python function.
        deterministic: whether Spark may call it once for equal arguments of a query.
    """

    signature: Signature
    python: PythonFunction | None = None
    deterministic: bool = True


def parse_function(node: Mapping[str, Any], name: str, local: bool) -> Definition:
    """Check a function and return its definition.

    Args:
        node: the compiled node in dbt's manifest, as a mapping.
        name: its name in statements.
        local: whether Spark's workers run in this environment.

    Raises:
        CompilationError: lists all that is wrong, with what to do.
    """
    config = node["config"]
    errors: list[str] = []
    kind, language = str(config.get("type") or "scalar"), str(node.get("language"))
    parameters = _parameters(node.get("arguments") or [], errors)
    returns = str((node.get("returns") or {}).get("data_type") or NO_TYPE)
    if returns == NO_TYPE:
        errors.append(
            "`returns` is missing: describe the function under `functions` in a YAML file, with "
            "`returns: {data_type: …}`"
        )
    if kind not in ("scalar", "aggregate"):
        errors.append(
            f"`type: {kind}` is not supported: use `scalar` or `aggregate`, and a model for a table"
        )
    if node.get("overloads"):
        errors.append("`overloads` are not supported: give each one a function of its own name")
    if config.get("grants"):
        errors.append("`grants` cannot be applied: no catalog keeps the function. Remove them")
    volatility = str(config.get("volatility") or "deterministic")
    expression, python = None, None
    if language == "sql":
        expression = _expression(node, parameters, kind, errors)
    elif language == "python":
        errors += _python_errors(node, kind, parameters, local)
        code = PythonAggregate if kind == "aggregate" else PythonFunction
        path, source = str(node.get("original_file_path")), str(node.get("compiled_code"))
        python = code(name, path, source, str(config.get("entry_point")))
    else:
        errors.append(f"the language `{language}` is not supported: write it in SQL or Python")
    if errors:
        lines = "\n".join(f"  - {error}" for error in errors)
        raise CompilationError(
            f"The function {node['unique_id']} ({node.get('original_file_path')}) has errors:\n"
            f"{lines}"
        )
    signature = Signature(name, parameters, returns, expression, volatility != "deterministic")
    return Definition(signature, python, volatility != "non-deterministic")


def _parameters(arguments: Sequence[Mapping[str, Any]], errors: list[str]) -> tuple[Parameter, ...]:
    parameters = tuple(
        Parameter(str(a["name"]), str(a["data_type"]), _default(a, errors)) for a in arguments
    )
    names = [parameter.name.lower() for parameter in parameters]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        errors.append(f"several arguments have the name `{repeated[0]}`: rename one")
    return parameters


def _default(argument: Mapping[str, Any], errors: list[str]) -> str | None:
    value = argument.get("default_value")
    if value is None:
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        if isinstance(value, dict | list):
            raise FunctionError("it is a list or a mapping")
        # A name in it would be that of any column where the function is called.
        parse_expression(text, ())
    except FunctionError as error:
        errors.append(
            f"`default_value` of `{argument['name']}` must be a SQL expression, e.g. 100 or "
            f"\"'EUR'\"; got {value!r}: {error}"
        )
    return text


def _expression(
    node: Mapping[str, Any], parameters: Sequence[Parameter], kind: str, errors: list[str]
) -> Expression | None:
    try:
        expression = parse_expression(str(node.get("compiled_code") or ""), parameters)
    except FunctionError as error:
        errors.append(str(error))
        return None
    if expression.aggregates and kind == "scalar":
        errors.append(
            "its SQL calls an aggregate function: set `type: aggregate`, or remove the call"
        )
    return expression


def _python_errors(
    node: Mapping[str, Any], kind: str, parameters: Sequence[Parameter], local: bool
) -> list[str]:
    config = node["config"]
    # The first sentences are those of dbt.
    errors = [
        f"{article} `{key}` is required for python functions: {remedy}"
        for article, key, remedy in (
            ("A", "runtime_version", 'the version of Python, e.g. "3.11"'),
            ("An", "entry_point", "the name of the function or class in the file"),
        )
        if not config.get(key)
    ]
    if kind == "aggregate" and not parameters:
        errors.append("an aggregate function in Python needs at least one argument: add it")
    try:
        tree = ast.parse(str(node.get("compiled_code")))
    except SyntaxError as error:
        return [*errors, f"line {error.lineno} is not valid Python: {error.msg}"]
    if config.get("entry_point"):
        errors += _entry_point_errors(tree, str(config["entry_point"]), kind)
    return errors + [e for p in config.get("packages") or [] if local for e in _missing(str(p))]


def _entry_point_errors(tree: ast.Module, entry_point: str, kind: str) -> list[str]:
    """Return what is wrong with the entry point, as far as the text shows it."""
    defined = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    node = defined.get(entry_point)
    if node is None:
        names = ", ".join(f"`{name}`" for name in defined) or "nothing"
        return [f"`entry_point: {entry_point}` is not defined in the file, which defines {names}"]
    if kind == "scalar":
        is_function = isinstance(node, ast.FunctionDef)
        return [] if is_function else [f"`entry_point: {entry_point}` must be a function (`def`)"]
    methods = {item.name for item in ast.walk(node) if isinstance(item, ast.FunctionDef)}
    inherits = isinstance(node, ast.ClassDef) and node.bases
    if isinstance(node, ast.ClassDef) and (inherits or methods >= STATE_METHODS):
        return []
    return [
        f"`entry_point: {entry_point}` of an aggregate function must be a class with the methods "
        "`accumulate` and `finish`"
    ]


def _missing(package: str) -> list[str]:
    """Return an error if a package is not installed in this environment."""
    try:
        requirement = Requirement(package)
        installed = version(requirement.name)
    except InvalidRequirement:
        return [f"`packages`: {package!r} is not a requirement, e.g. numpy or 'numpy>=2'"]
    except PackageNotFoundError:
        return [f"`packages`: {package} is not installed where dbt runs: `pip install '{package}'`"]
    if requirement.specifier.contains(installed, prereleases=True):
        return []
    return [f"`packages`: {package} is required, but {requirement.name} {installed} is installed"]
