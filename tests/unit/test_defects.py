"""The defects that `make defects` puts back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.mutants.defects import DEFECTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "defect"), yaml.safe_load(DEFECTS.read_text()).items())
def test_the_code_has_what_a_defect_replaces(name: str, defect: dict[str, str]) -> None:
    assert defect["old"] in (ROOT / "dbt" / defect["file"]).read_text(), name
    assert (ROOT / defect["test"].split("::")[0]).exists(), name
