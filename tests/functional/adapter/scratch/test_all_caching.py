from dbt.tests.adapter.caching.test_caching import BaseCachingTest as _BaseCachingTest
from dbt.tests.adapter.caching.test_caching import BaseCachingLowercaseModel as _BaseCachingLowercaseModel
from dbt.tests.adapter.caching.test_caching import BaseCachingUppercaseModel as _BaseCachingUppercaseModel
from dbt.tests.adapter.caching.test_caching import BaseCachingSelectedSchemaOnly as _BaseCachingSelectedSchemaOnly
from dbt.tests.adapter.caching.test_caching import BaseNoPopulateCache as _BaseNoPopulateCache


class TestCachingTest(_BaseCachingTest):
    pass


class TestCachingLowercaseModel(_BaseCachingLowercaseModel):
    pass


class TestCachingUppercaseModel(_BaseCachingUppercaseModel):
    pass


class TestCachingSelectedSchemaOnly(_BaseCachingSelectedSchemaOnly):
    pass


class TestNoPopulateCache(_BaseNoPopulateCache):
    pass
