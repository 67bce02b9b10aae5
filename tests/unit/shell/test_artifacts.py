from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

from dbt.artifacts.schemas import base
from dbt_common.clients import system

from dbt.adapters.iceberg_stream.shell.artifacts import quick_artifacts, write_json

DATA = {
    "names": ["é", '"', "\n", "\u2028", "𝄞"],
    "numbers": [1, 0.1, 1e300, Decimal("1.50"), True, None, float("nan")],
    "times": [date(2026, 1, 1), datetime(2026, 1, 1, 1, tzinfo=timezone.utc)],
    "nested": {"empty": {}, "list": []},
}


def test_files_are_those_of_dbt(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "new" / "ours.json", tmp_path / "theirs.json"
    write_json(str(ours), DATA)
    system.write_json(str(theirs), DATA)
    assert ours.read_bytes() == theirs.read_bytes()


def test_dbt_has_its_own_function_afterwards() -> None:
    before = base.write_json
    with quick_artifacts():
        assert base.write_json is write_json
    assert base.write_json is before
