from dbt.tests.adapter.incremental.test_incremental_merge_exclude_columns import (
    BaseMergeExcludeColumns,
)
from dbt.tests.adapter.incremental.test_incremental_microbatch import BaseMicrobatch
from dbt.tests.adapter.incremental.test_incremental_on_schema_change import (
    BaseIncrementalOnSchemaChange,
)
from dbt.tests.adapter.incremental.test_incremental_predicates import BaseIncrementalPredicates
from dbt.tests.adapter.incremental.test_incremental_unique_id import BaseIncrementalUniqueKey
from dbt.tests.adapter.sample_mode.test_sample_mode import BaseSampleModeTest
from dbt.tests.util import run_dbt


class TestMergeExcludeColumns(BaseMergeExcludeColumns):
    pass


class TestMicrobatch(BaseMicrobatch):
    pass


class TestIncrementalOnSchemaChange(BaseIncrementalOnSchemaChange):
    pass


class TestIncrementalPredicates(BaseIncrementalPredicates):
    pass


# A key that is no column is refused at the first build already, not at the second.
class TestIncrementalUniqueKey(BaseIncrementalUniqueKey):
    def fail_to_build_inc_missing_unique_key_column(self, incremental_model_name):
        run_dbt(["seed", "--select", "seed", "--full-refresh"])
        command = ["run", "--select", incremental_model_name, "--full-refresh"]
        result = run_dbt(command, expect_pass=False).results[0]
        return result.status, result.message


class TestSampleModeTest(BaseSampleModeTest):
    pass
