from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsInteractions as _StoreTestFailuresAsInteractions
from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsProjectLevelOff as _StoreTestFailuresAsProjectLevelOff
from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsProjectLevelView as _StoreTestFailuresAsProjectLevelView
from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsProjectLevelEphemeral as _StoreTestFailuresAsProjectLevelEphemeral
from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsGeneric as _StoreTestFailuresAsGeneric
from dbt.tests.adapter.store_test_failures_tests.basic import StoreTestFailuresAsExceptions as _StoreTestFailuresAsExceptions
from dbt.tests.adapter.store_test_failures_tests.test_store_test_failures import BaseStoreTestFailures as _BaseStoreTestFailures
from dbt.tests.adapter.store_test_failures_tests.test_store_test_failures import BaseStoreTestFailuresLimit as _BaseStoreTestFailuresLimit


class TestStoreTestFailuresAsInteractions(_StoreTestFailuresAsInteractions):
    pass


class TestStoreTestFailuresAsProjectLevelOff(_StoreTestFailuresAsProjectLevelOff):
    pass


class TestStoreTestFailuresAsProjectLevelView(_StoreTestFailuresAsProjectLevelView):
    pass


class TestStoreTestFailuresAsProjectLevelEphemeral(_StoreTestFailuresAsProjectLevelEphemeral):
    pass


class TestStoreTestFailuresAsGeneric(_StoreTestFailuresAsGeneric):
    pass


class TestStoreTestFailuresAsExceptions(_StoreTestFailuresAsExceptions):
    pass


class TestStoreTestFailures(_BaseStoreTestFailures):
    pass


class TestStoreTestFailuresLimit(_BaseStoreTestFailuresLimit):
    pass
