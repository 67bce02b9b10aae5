from dbt.tests.adapter.catalog.relation_types import CatalogRelationTypes as _CatalogRelationTypes


class TestCatalogRelationTypes(_CatalogRelationTypes):
    pass
