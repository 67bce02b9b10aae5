from dbt.tests.adapter.dbt_show.test_dbt_show import BaseShowLimit as _BaseShowLimit
from dbt.tests.adapter.dbt_show.test_dbt_show import BaseShowSqlHeader as _BaseShowSqlHeader
from dbt.tests.adapter.dbt_show.test_dbt_show import BaseShowDoesNotHandleDoubleLimit as _BaseShowDoesNotHandleDoubleLimit


class TestShowLimit(_BaseShowLimit):
    pass


class TestShowSqlHeader(_BaseShowSqlHeader):
    pass


class TestShowDoesNotHandleDoubleLimit(_BaseShowDoesNotHandleDoubleLimit):
    pass
