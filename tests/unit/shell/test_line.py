from __future__ import annotations

import pytest

from dbt.adapters.iceberg_stream.shell.line import LineError, split_line


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("run -s orders+", ["run", "-s", "orders+"]),
        ("  dbt run", ["run"]),
        ("run -s dbt", ["run", "-s", "dbt"]),
        ("dbt", ["--help"]),
        ("", []),
        (" \t\n", []),
        ("# run", []),
        ("""run --vars '{"day": "2026-01-01"}'""", ["run", "--vars", '{"day": "2026-01-01"}']),
        ("ls -s tag:a#b", ["ls", "-s", "tag:a#b"]),
        ("show --inline 'select 1 as \"a b\"'\n", ["show", "--inline", 'select 1 as "a b"']),
    ],
)
def test_arguments(line: str, arguments: list[str]) -> None:
    assert split_line(line) == arguments


@pytest.mark.parametrize("line", ["run 'a", 'run --vars "{a: 1}', "run \\"])
def test_lines_that_do_not_end(line: str) -> None:
    with pytest.raises(LineError, match="quot|escape"):
        split_line(line)
