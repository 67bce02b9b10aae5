"""Functions of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.literals import count, written
from dbt.adapters.iceberg_stream.stream.query.translator import Translate, Translator, text
from dbt.adapters.iceberg_stream.stream.query.values import (
    Function,
    Unsupported,
    Value,
    call,
    scalar,
)

TRIMS = {None: pc.ascii_trim, "LEADING": pc.ascii_ltrim, "TRAILING": pc.ascii_rtrim}
LAST_CHARACTER = "\uffff"
SEARCHES: dict[type[exp.Expr], Function] = {
    exp.StartsWith: pc.starts_with,
    exp.EndsWith: pc.ends_with,
    exp.Contains: pc.match_substring,
}


def _case_of_letters(translator: Translator, node: exp.Upper | exp.Lower) -> Value:
    value = text(translator, node.this)
    # Java and PyArrow have different tables of letters.
    translator.inputs.doubt(is_not_ascii, value)
    change = pc.ascii_upper if isinstance(node, exp.Upper) else pc.ascii_lower
    return call(change, pa.string(), value)


def _concat(translator: Translator, node: exp.Concat | exp.DPipe) -> Value:
    nodes = [node.this, node.expression] if isinstance(node, exp.DPipe) else node.expressions
    texts = [text(translator, each) for each in nodes]
    return _joined(*texts)


def _joined(*texts: Value) -> Value:
    """Return texts one after the other; null if one is.

    Args:
        texts: the texts.
    """
    return call(pc.binary_join_element_wise, pa.string(), *texts, scalar("", pa.string()))


def _concat_ws(translator: Translator, node: exp.ConcatWs) -> Value:
    """Translate `concat_ws`; PyArrow's `null_handling="skip"` loses rows that have only nulls."""
    separator, *nodes = node.expressions
    texts = [text(translator, each) for each in nodes]
    if not texts:
        raise Unsupported
    between, nothing = written(separator), scalar("", pa.string())
    separated = [_joined(scalar(between, pa.string()), each) for each in texts]
    present = [call(pc.coalesce, pa.string(), each, nothing) for each in separated]
    return _slice(_joined(*present), len(between), None)


def _trim(translator: Translator, node: exp.Trim) -> Value:
    trim = TRIMS.get(node.args.get("position"))
    if trim is None or node.expression:
        raise Unsupported
    return call(trim, pa.string(), text(translator, node.this), characters=" ")


def _length(translator: Translator, node: exp.Length) -> Value:
    return call(pc.utf8_length, pa.int32(), text(translator, node.this))


def _substring(translator: Translator, node: exp.Substring) -> Value:
    start, length = count(node.args.get("start")), node.args.get("length")
    if start < 1:
        raise Unsupported
    stop = None if length is None else start - 1 + count(length)
    return _slice(text(translator, node.this), start - 1, stop)


def _left(translator: Translator, node: exp.Left) -> Value:
    return _slice(text(translator, node.this), 0, count(node.expression))


def _slice(value: Value, start: int, stop: int | None) -> Value:
    return call(pc.utf8_slice_codeunits, pa.string(), value, start=start, stop=stop)


def _pad(translator: Translator, node: exp.Pad) -> Value:
    width = count(node.expression)
    fill = node.args.get("fill_pattern")
    padding = " " if fill is None else written(fill)
    if len(padding) != 1:
        raise Unsupported
    value = _slice(text(translator, node.this), 0, width)
    pad = pc.utf8_lpad if node.args.get("is_left") else pc.utf8_rpad
    return call(pad, pa.string(), value, width=width, padding=padding)


def _replace(translator: Translator, node: exp.Replace) -> Value:
    old, new = (written(each) for each in (node.expression, node.args.get("replacement")))
    if not old:
        raise Unsupported
    value = text(translator, node.this)
    return call(pc.replace_substring, pa.string(), value, pattern=old, replacement=new)


def _search(translator: Translator, node: exp.Func) -> Value:
    part = written(node.args["expression"])
    return call(SEARCHES[type(node)], pa.bool_(), text(translator, node.this), pattern=part)


def _like(translator: Translator, node: exp.Like) -> Value:
    pattern = written(node.expression)
    # Java has two characters for each of the others, which Spark looks for one by one.
    if any(letter > LAST_CHARACTER for letter in pattern):
        raise Unsupported
    matches = call(pc.match_like, pa.bool_(), text(translator, node.this), pattern=pattern)
    return call(pc.invert, pa.bool_(), matches) if node.args.get("negate") else matches


def _position(translator: Translator, node: exp.StrPosition) -> Value:
    part = written(node.args.get("substr"))
    if not part or node.args.get("position") or node.args.get("occurrence"):
        raise Unsupported
    value = text(translator, node.this)
    # PyArrow counts bytes.
    translator.inputs.doubt(is_not_ascii, value)
    place = call(pc.find_substring, pa.int32(), value, pattern=part)
    return call(pc.add, pa.int32(), place, scalar(1, pa.int32()))


def is_not_ascii(texts: Any) -> Any:
    """Return which texts have letters other than those of ASCII."""
    return pc.invert(pc.string_is_ascii(texts))


FUNCTIONS: Mapping[type[exp.Expr], Translate] = {
    **dict.fromkeys((exp.Upper, exp.Lower), _case_of_letters),
    **dict.fromkeys((exp.Concat, exp.DPipe), _concat),
    **dict.fromkeys(SEARCHES, _search),
    exp.ConcatWs: _concat_ws,
    exp.Trim: _trim,
    exp.Length: _length,
    exp.Substring: _substring,
    exp.Left: _left,
    exp.Pad: _pad,
    exp.Replace: _replace,
    exp.Like: _like,
    exp.StrPosition: _position,
}
