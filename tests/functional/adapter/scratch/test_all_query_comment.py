from dbt.tests.adapter.query_comment.test_query_comment import BaseQueryComments as _BaseQueryComments
from dbt.tests.adapter.query_comment.test_query_comment import BaseMacroQueryComments as _BaseMacroQueryComments
from dbt.tests.adapter.query_comment.test_query_comment import BaseMacroArgsQueryComments as _BaseMacroArgsQueryComments
from dbt.tests.adapter.query_comment.test_query_comment import BaseMacroInvalidQueryComments as _BaseMacroInvalidQueryComments
from dbt.tests.adapter.query_comment.test_query_comment import BaseNullQueryComments as _BaseNullQueryComments
from dbt.tests.adapter.query_comment.test_query_comment import BaseEmptyQueryComments as _BaseEmptyQueryComments


class TestQueryComments(_BaseQueryComments):
    pass


class TestMacroQueryComments(_BaseMacroQueryComments):
    pass


class TestMacroArgsQueryComments(_BaseMacroArgsQueryComments):
    pass


class TestMacroInvalidQueryComments(_BaseMacroInvalidQueryComments):
    pass


class TestNullQueryComments(_BaseNullQueryComments):
    pass


class TestEmptyQueryComments(_BaseEmptyQueryComments):
    pass
