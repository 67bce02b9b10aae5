from dbt.tests.adapter.incremental.test_incremental_merge_exclude_columns import BaseMergeExcludeColumns as _BaseMergeExcludeColumns
from dbt.tests.adapter.incremental.test_incremental_microbatch import BaseMicrobatch as _BaseMicrobatch
from dbt.tests.adapter.incremental.test_incremental_on_schema_change import BaseIncrementalOnSchemaChange as _BaseIncrementalOnSchemaChange
from dbt.tests.adapter.incremental.test_incremental_predicates import BaseIncrementalPredicates as _BaseIncrementalPredicates
from dbt.tests.adapter.incremental.test_incremental_unique_id import BaseIncrementalUniqueKey as _BaseIncrementalUniqueKey


class TestMergeExcludeColumns(_BaseMergeExcludeColumns):
    pass


class TestMicrobatch(_BaseMicrobatch):
    pass


class TestIncrementalOnSchemaChange(_BaseIncrementalOnSchemaChange):
    pass


class TestIncrementalPredicates(_BaseIncrementalPredicates):
    pass


class TestIncrementalUniqueKey(_BaseIncrementalUniqueKey):
    pass
