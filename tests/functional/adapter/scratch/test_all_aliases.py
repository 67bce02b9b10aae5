from dbt.tests.adapter.aliases.test_aliases import BaseAliases as _BaseAliases
from dbt.tests.adapter.aliases.test_aliases import BaseAliasErrors as _BaseAliasErrors
from dbt.tests.adapter.aliases.test_aliases import BaseSameAliasDifferentSchemas as _BaseSameAliasDifferentSchemas
from dbt.tests.adapter.aliases.test_aliases import BaseSameAliasDifferentDatabases as _BaseSameAliasDifferentDatabases


class TestAliases(_BaseAliases):
    pass


class TestAliasErrors(_BaseAliasErrors):
    pass


class TestSameAliasDifferentSchemas(_BaseSameAliasDifferentSchemas):
    pass


class TestSameAliasDifferentDatabases(_BaseSameAliasDifferentDatabases):
    pass
