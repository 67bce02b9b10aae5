from dbt.tests.adapter.functions.test_udfs import (
    ErrorForUnsupportedType,
    PythonUDFEntryPointRequired,
    PythonUDFNotSupported,
    PythonUDFRuntimeVersionRequired,
)


class TestErrorForUnsupportedType(ErrorForUnsupportedType):
    pass


class TestPythonUDFNotSupported(PythonUDFNotSupported):
    pass


class TestPythonUDFRuntimeVersionRequired(PythonUDFRuntimeVersionRequired):
    pass


class TestPythonUDFEntryPointRequired(PythonUDFEntryPointRequired):
    pass
