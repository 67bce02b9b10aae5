from dbt.tests.adapter.relations.test_changing_relation_type import BaseChangeRelationTypeValidator as _BaseChangeRelationTypeValidator
from dbt.tests.adapter.relations.test_dropping_schema_named import BaseDropSchemaNamed as _BaseDropSchemaNamed


class TestChangeRelationTypeValidator(_BaseChangeRelationTypeValidator):
    pass


class TestDropSchemaNamed(_BaseDropSchemaNamed):
    pass
