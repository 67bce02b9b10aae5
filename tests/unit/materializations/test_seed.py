from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from dbt_common.clients.agate_helper import from_csv

from dbt.adapters.iceberg_stream.materializations.seed import arrow_table


def read(tmp_path: Path, text: str, *text_columns: str) -> pa.Table:
    path = tmp_path / "seed.csv"
    path.write_text(text)
    return arrow_table(from_csv(str(path), list(text_columns)))


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
