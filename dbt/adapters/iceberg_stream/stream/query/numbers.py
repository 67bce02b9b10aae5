"""Arithmetic, and functions of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query import decimals
from dbt.adapters.iceberg_stream.stream.query.decimals import is_decimal
from dbt.adapters.iceberg_stream.stream.query.literals import (
    as_operand,
    count,
    is_constant,
    is_number,
    number,
    without_parentheses,
)
from dbt.adapters.iceberg_stream.stream.query.temporal import add_interval
from dbt.adapters.iceberg_stream.stream.query.translator import Translate, Translator
from dbt.adapters.iceberg_stream.stream.query.values import (
    DATE,
    INTEGERS,
    NUMBERS,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Function,
    Unsupported,
    Value,
    call,
    convert,
    scalar,
)

# For integers, which must not overflow, and for doubles and decimals.
ARITHMETIC: dict[type[exp.Expr], tuple[Function, Function]] = {
    exp.Add: (pc.add_checked, pc.add),
    exp.Sub: (pc.subtract_checked, pc.subtract),
    exp.Mul: (pc.multiply_checked, pc.multiply),
    exp.Neg: (pc.negate_checked, pc.negate),
    exp.Abs: (pc.abs_checked, pc.abs),
}


def _arithmetic(translator: Translator, node: exp.Expr) -> Value:
    if is_number(node):
        return number(node)
    of_integers, of_others = ARITHMETIC[type(node)]
    operands = (node.this, node.args.get("expression"))
    nodes = [without_parentheses(operand) for operand in operands if operand is not None]
    if isinstance(nodes[-1], exp.Interval) and isinstance(node, exp.Add | exp.Sub):
        return add_interval(translator.value(nodes[0]), nodes[-1], of_integers, translator)
    values = _numbers(translator, nodes)
    kind = values[0].type
    if is_decimal(kind) or is_decimal(values[-1].type):
        return _of_decimals(node, of_others, values)
    return call(of_integers if kind in INTEGERS else of_others, kind, *values)


def _of_decimals(node: exp.Expr, function: Function, values: list[Value]) -> Value:
    if len(values) == 1:
        return call(function, values[0].type, *values)
    if isinstance(node, exp.Mul):
        return decimals.multiply(*values)
    return decimals.add(function, *values)


def _division(translator: Translator, node: exp.Div) -> Value:
    nodes = [without_parentheses(each) for each in (node.this, node.expression)]
    values = _numbers(translator, nodes)
    if any(is_decimal(value.type) for value in values):
        return decimals.divide(*values)
    dividend, divisor = (convert(value, pa.float64()) for value in values)
    translator.inputs.doubt(pc.equal, divisor, scalar(0.0, pa.float64()))
    return call(pc.divide, pa.float64(), dividend, divisor)


def _numbers(translator: Translator, nodes: list[exp.Expr]) -> list[Value]:
    """Translate operands that are numbers: of one type, unless they are decimals and integers."""
    if all(map(is_constant, nodes)):
        raise Unsupported
    values = [translator.value(each) for each in nodes]
    kinds = [value.type for value in values]
    if any(map(is_decimal, kinds)) and pa.float64() not in kinds:
        return [as_operand(*each) for each in zip(nodes, values, strict=True)]
    values = translator.unify(nodes, values)
    if values[0].type not in NUMBERS:
        raise Unsupported
    return values


def _whole_division(translator: Translator, node: exp.IntDiv) -> Value:
    values = _integers(translator, node)
    return call(pc.divide_checked, pa.int64(), *(convert(value, pa.int64()) for value in values))


def _remainder(translator: Translator, node: exp.Mod) -> Value:
    values = _integers(translator, node)
    return call(_remainders, values[0].type, *values)


def _remainders(dividends: Any, divisors: Any) -> Any:
    """Return remainders of quotients that are cut off, as in Java."""
    return pc.subtract(dividends, pc.multiply(pc.divide_checked(dividends, divisors), divisors))


def _integers(translator: Translator, node: exp.Binary) -> list[Value]:
    if all(map(is_constant, (node.this, node.expression))):
        raise Unsupported
    values = translator.operands(node.this, node.expression)
    if values[0].type not in INTEGERS:
        raise Unsupported
    return values


def _whole(translator: Translator, node: exp.Floor | exp.Ceil) -> Value:
    value = translator.value(node.this)
    if is_constant(node.this) or node.args.get("decimals") or node.args.get("to"):
        raise Unsupported
    function = pc.floor if isinstance(node, exp.Floor) else pc.ceil
    if is_decimal(value.type):
        return decimals.to_whole(function, value)
    if value.type not in NUMBERS:
        raise Unsupported
    if value.type == pa.float64():
        value = call(function, pa.float64(), value)
    return convert(value, pa.int64())


def _round(translator: Translator, node: exp.Round) -> Value:
    if is_constant(node.this) or node.args.get("truncate"):
        raise Unsupported
    value, places = translator.value(node.this), node.args.get("decimals")
    scale = 0 if places is None else count(places)
    if value.type == pa.float64():
        return decimals.round_double(value, scale, translator.inputs)
    if not is_decimal(value.type):
        raise Unsupported
    return decimals.round_to(value, scale)


def _extreme(translator: Translator, node: exp.Greatest | exp.Least, function: Any) -> Value:
    if not node.expressions or all(map(is_constant, (node.this, *node.expressions))):
        raise Unsupported
    values = translator.operands(node.this, *node.expressions)
    kind = values[0].type
    # Doubles have two zeros, and NaN.
    if kind not in (*INTEGERS, pa.string(), DATE, TIMESTAMP) and not is_decimal(kind):
        raise Unsupported
    if kind != TIMESTAMP:
        return call(function, kind, *values)
    # PyArrow compares only timestamps without a zone.
    clocks = [convert(value, TIMESTAMP_NTZ) for value in values]
    return convert(call(function, TIMESTAMP_NTZ, *clocks), TIMESTAMP)


FUNCTIONS: Mapping[type[exp.Expr], Translate] = {
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    **dict.fromkeys((exp.Floor, exp.Ceil), _whole),
    exp.Div: _division,
    exp.IntDiv: _whole_division,
    exp.Mod: _remainder,
    exp.Round: _round,
    exp.Greatest: partial(_extreme, function=pc.max_element_wise),
    exp.Least: partial(_extreme, function=pc.min_element_wise),
}
