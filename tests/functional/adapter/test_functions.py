"""The official tests of functions. Nothing is created in the catalog: a build checks a function."""

from __future__ import annotations

from typing import Any

from dbt.tests.adapter.functions.test_udafs import (
    BasicPythonUDAF,
    BasicSQLUDAF,
    PythonUDAFDefaultArgSupport,
)
from dbt.tests.adapter.functions.test_udfs import (
    DeterministicUDF,
    ErrorForUnsupportedType,
    NonDeterministicUDF,
    PythonUDFDefaultArgSupport,
    PythonUDFEntryPointRequired,
    PythonUDFRuntimeVersionRequired,
    PythonUDFSupported,
    PythonUDFVolatilitySupport,
    PythonUDFWithPackagesSupported,
    SqlUDFDefaultArgSupport,
    StableUDF,
    UDFsBasic,
)
from dbt.tests.util import run_dbt


class Checked:
    """How the adapter builds a function, and that volatility is no part of the statement."""

    def is_function_create_event(self, event: Any) -> bool:
        return "describe query select `" in event.data.sql

    def check_function_volatility(self, sql: str) -> None:
        UDFsBasic.check_function_volatility(self, sql)  # type: ignore[arg-type]


class TestUDFsBasic(Checked, UDFsBasic):
    pass


class TestDeterministicUDF(Checked, DeterministicUDF):
    pass


class TestStableUDF(Checked, StableUDF):
    pass


class TestNonDeterministicUDF(Checked, NonDeterministicUDF):
    pass


class TestPythonUDFSupported(Checked, PythonUDFSupported):
    pass


class TestPythonUDFVolatilitySupport(Checked, PythonUDFVolatilitySupport):
    pass


class TestPythonUDFWithPackagesSupported(Checked, PythonUDFWithPackagesSupported):
    def expected_packages_sql_fragment(self) -> str:
        return "`(cast(null as float))"


class Defaults(Checked):
    """Defaults are filled in when the function is called."""

    def test_udfs(self, project: Any) -> None:
        run_dbt(["build"])
        shown = run_dbt(["show", "--inline", "select {{ function('price_for_xlarge') }}()"])
        assert shown.results[0].agate_table.rows[0].values()[0] == 200


class TestSqlUDFDefaultArgSupport(Defaults, SqlUDFDefaultArgSupport):
    pass


class TestPythonUDFDefaultArgSupport(Defaults, PythonUDFDefaultArgSupport):
    pass


class TestBasicPythonUDAF(Checked, BasicPythonUDAF):
    pass


class TestBasicSQLUDAF(Checked, BasicSQLUDAF):
    pass


class TestPythonUDAFDefaultArgSupport(Checked, PythonUDAFDefaultArgSupport):
    def test_udaf(self, project: Any) -> None:
        run_dbt(["build"])
        query = "select {{ function('sum_squared') }}() from {{ ref('basic_model') }}"
        shown = run_dbt(["show", "--inline", query])
        assert shown.results[0].agate_table.rows[0].values()[0] == 9.0


class TestErrorForUnsupportedType(ErrorForUnsupportedType):
    def test_udfs(self, project: Any) -> None:
        built = run_dbt(["build"], expect_pass=False)
        assert "`type: table` is not supported" in built.results[0].message


class TestPythonUDFRuntimeVersionRequired(PythonUDFRuntimeVersionRequired):
    pass


class TestPythonUDFEntryPointRequired(PythonUDFEntryPointRequired):
    pass
