"""The benchmarks, which only people run, still fit the code that they measure."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.run import AREAS


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_benchmarks(area: str) -> None:
    assert importlib.import_module(f"benchmarks.{area}").BENCHMARKS
