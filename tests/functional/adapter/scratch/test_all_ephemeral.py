from dbt.tests.adapter.ephemeral.test_ephemeral import BaseEphemeralMulti as _BaseEphemeralMulti
from dbt.tests.adapter.ephemeral.test_ephemeral import BaseEphemeralNested as _BaseEphemeralNested
from dbt.tests.adapter.ephemeral.test_ephemeral import BaseEphemeralErrorHandling as _BaseEphemeralErrorHandling


class TestEphemeralMulti(_BaseEphemeralMulti):
    pass


class TestEphemeralNested(_BaseEphemeralNested):
    pass


class TestEphemeralErrorHandling(_BaseEphemeralErrorHandling):
    pass
