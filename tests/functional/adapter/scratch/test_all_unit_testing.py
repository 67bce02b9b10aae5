from dbt.tests.adapter.unit_testing.test_case_insensitivity import BaseUnitTestCaseInsensivity as _BaseUnitTestCaseInsensivity
from dbt.tests.adapter.unit_testing.test_invalid_input import BaseUnitTestInvalidInput as _BaseUnitTestInvalidInput
from dbt.tests.adapter.unit_testing.test_quoted_reserved_word_column_names import BaseUnitTestQuotedReservedWordColumnNames as _BaseUnitTestQuotedReservedWordColumnNames
from dbt.tests.adapter.unit_testing.test_types import BaseUnitTestingTypes as _BaseUnitTestingTypes
from dbt.tests.adapter.unit_testing.test_types import BaseUnitTestingVarcharFixtureNoTruncation as _BaseUnitTestingVarcharFixtureNoTruncation


class TestUnitTestCaseInsensivity(_BaseUnitTestCaseInsensivity):
    pass


class TestUnitTestInvalidInput(_BaseUnitTestInvalidInput):
    pass


class TestUnitTestQuotedReservedWordColumnNames(_BaseUnitTestQuotedReservedWordColumnNames):
    pass


class TestUnitTestingTypes(_BaseUnitTestingTypes):
    pass


class TestUnitTestingVarcharFixtureNoTruncation(_BaseUnitTestingVarcharFixtureNoTruncation):
    pass
