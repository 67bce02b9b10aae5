from dbt.tests.adapter.concurrency.test_concurrency import BaseConcurrency as _BaseConcurrency


class TestConcurrency(_BaseConcurrency):
    pass
