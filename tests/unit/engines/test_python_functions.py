"""Python functions, as Spark's workers call them."""

from __future__ import annotations

import pickle
import traceback

import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate, PythonFunction
from dbt.adapters.iceberg_stream.errors.spark import describe

MEAN = """
class Mean:
    def __init__(self):
        self.sum = self.weights = 0
    def accumulate(self, value, weight):
        if value is not None:
            self.sum += value * weight
            self.weights += weight
    def finish(self):
        return self.sum / self.weights if self.weights else None
"""


def test_the_file_runs_once() -> None:
    code = "runs = []\ndef next(n):\n    runs.append(n)\n    return len(runs)"
    function = pickle.loads(pickle.dumps(PythonFunction("s.next", "next.py", code, "next")))
    assert [function(7), function(7)] == [1, 2]


def test_an_aggregate_starts_anew_for_each_group() -> None:
    mean = PythonAggregate("s.mean", "mean.py", MEAN, "Mean")
    assert mean(pa.array([1, 4, None]), pa.array([2, 1, 5])) == 2
    assert mean(pa.array([10]), pa.array([1])) == 10
    assert mean(pa.array([], pa.int64()), pa.array([], pa.int64())) is None


def test_a_package_that_the_worker_lacks() -> None:
    function = PythonFunction("s.f", "f.py", "import no_such_package\ndef f(): pass", "f")
    with pytest.raises(
        ImportError, match=r"`s\.f` imports a package .* Install it there\."
    ) as raised:
        function()
    # The user sees no traceback.
    lines = traceback.format_exception(raised.value)
    assert describe("".join(lines)).startswith("The function `s.f` imports a package")


def test_a_traceback_names_the_file_and_the_line() -> None:
    function = PythonFunction("s.f", "functions/f.py", "\ndef f(n):\n    return 1 / n", "f")
    with pytest.raises(ZeroDivisionError) as raised:
        function(0)
    assert (
        str(raised.traceback[-1].path).endswith("functions/f.py"),
        raised.traceback[-1].lineno,
    ) == (True, 2)
