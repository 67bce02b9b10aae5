from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import agate
import pyarrow as pa
import pytest
from dbt_common.clients.agate_helper import from_csv
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.materializations.seed import (
    _arrow_type,
    _check_floats,
    _parse,
    arrow_table,
    read_seed,
)


def read(tmp_path: Path, text: str, *text_columns: str) -> pa.Table:
    path = tmp_path / "seed.csv"
    path.write_text(text)

    def load() -> agate.Table:
        rows = from_csv(str(path), list(text_columns))
        rows.original_abspath = str(path)
        return rows

    return arrow_table(read_seed(load, ","))


def test_types_and_nulls(tmp_path: Path) -> None:
    table = read(tmp_path, "i,f,s,d,b\n9007199254740993,1.5,None,2024-02-29,true\n,,,,\n")
    assert [str(kind) for kind in table.schema.types] == [
        "int64", "double", "string", "date32[day]", "bool",
    ]  # fmt: skip
    first, second = table.to_pylist()
    assert first["i"] == 9007199254740993
    assert first["s"] == "None"
    assert set(second.values()) == {None}


def test_numbers_beyond_64_bits_stay_exact(tmp_path: Path) -> None:
    table = read(tmp_path, "n\n18446744073709551616\n")
    assert table.schema.field("n").type == pa.decimal128(38, 0)
    assert int(table["n"][0].as_py()) == 2**64


def test_a_text_column_keeps_its_text(tmp_path: Path) -> None:
    assert read(tmp_path, "zip\n00123\n", "zip").to_pylist() == [{"zip": "00123"}]


def test_an_empty_seed_has_its_columns(tmp_path: Path) -> None:
    table = read(tmp_path, "a,b\n")
    assert (table.num_rows, table.column_names) == (0, ["a", "b"])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("NaN", pa.float64(), "nan"),
        ("-infinity", pa.float64(), "-inf"),
        ("123456789012345678901234567891", pa.decimal128(38, 0), "123456789012345678901234567891"),
        ("-" + "9" * 38, pa.decimal128(38, 0), "-" + "9" * 38),
        ("0.1", pa.float64(), "0.1"),
        ("1e5", pa.int64(), "100000"),
        ("1e308\n0.5", pa.float64(), "1e+308"),
        ("007", pa.int64(), "7"),
        ("nan(1)", pa.string(), "nan(1)"),
    ],
)
def test_numbers_of_any_size(tmp_path: Path, text: str, kind: pa.DataType, value: str) -> None:
    column = read(tmp_path, f"n\n{text}\n")["n"]
    assert (column.type, str(column[0].as_py())) == (kind, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 40, f"The number {'9' * 40} in column `n` of the seed has more than the 38 digits"),
        ("1e400", "The number 1E[+]400 in column `n` of the seed has more than the 38 digits"),
        ("1e2000000", "The number 1E[+]2000000 in column `n` of the seed has more than the 38"),
        ("9" * 1200, "The number 1.00000E[+]1200 in column `n` of the seed has more than the 38"),
        ("0.5\n-1e309", "The number -1E[+]309 in column `n` of the seed is beyond the range of"),
        ("inf\n1e400", "The number 1E[+]400 in column `n` of the seed is beyond the range of"),
        ("1e-2000000", "The number 1E-2000000 in column `n` of the seed is beyond the range of"),
        ("-nan", "The number -nan in column `n` of the seed is not a number"),
        ("NaN12", "The number NaN12 in column `n` of the seed is not a number"),
    ],
)
def test_numbers_that_cannot_be_stored(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CompilationError, match=message):
        read(tmp_path, f"n\n{text}\n")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("decimal(38,0)", ["9" * 39, "1.5", "1e3"]),
        ("decimal(9,2)", ["12345678.5", "0.125"]),
        ("double", ["nan(1)", "-nan", "NaN", "inf", "0x10", "1d"]),
        ("int", ["0x10", "1.0"]),
        ("timestamp", ["2026-03-08 10", "2026-03-08 10:00:00Z", "2026-03-08 10:00:00.1234567"]),
    ],
)
def test_texts_that_spark_parses(kind: str, texts: list[str]) -> None:
    arrow = _arrow_type(kind)
    for text in texts:
        with pytest.raises(pa.ArrowInvalid):
            _parse(pa.chunked_array([[None, text]]), arrow)


def test_texts_that_arrow_parses() -> None:
    decimals = _parse(pa.chunked_array([["9" * 38, None, "-0007"]]), pa.decimal128(38, 0))
    assert decimals.to_pylist() == [Decimal("9" * 38), None, Decimal(-7)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("double", "1e400"),
        ("double", "-1" + "0" * 309),
        ("double", "1e-400"),
        ("float", " 1e39 "),
        ("float", "0.1e-46"),
        ("real", "-4e38"),
    ],
)
def test_numbers_beyond_a_configured_type(kind: str, text: str) -> None:
    rows = pa.table({"a": ["1.5", None, "", "NaN", "Infinity", "0e-400", "0.0"], "B": [text] * 7})
    _check_floats(rows, {"a": kind, "b": "string"})
    with pytest.raises(CompilationError, match=f"column `B` .*range of `{kind}`"):
        _check_floats(rows, {"b": kind})
