import pytest
from dbt.tests.adapter.empty.test_empty import (
    BaseTestEmpty,
    BaseTestEmptyInlineSourceRef,
    BaseTestEmptySeedFlag,
    MetadataWithEmptyFlag,
)
from dbt.version import __version__ as installed
from dbt_common.semver import VersionSpecifier

FIRST_WITH_FLAG = VersionSpecifier.from_version_string("1.12.0")


class TestEmpty(BaseTestEmpty):
    pass


class TestEmptyInlineSourceRef(BaseTestEmptyInlineSourceRef):
    pass


@pytest.mark.skipif(
    VersionSpecifier.from_version_string(installed).compare(FIRST_WITH_FLAG) < 0,
    reason="dbt-core 1.11 has no `dbt seed --empty`",
)
class TestEmptySeedFlag(BaseTestEmptySeedFlag):
    pass


# Spark's types. And Iceberg widens a type in place, but a string has no wider one.
class TestMetadataWithEmptyFlag(MetadataWithEmptyFlag):
    @pytest.fixture(scope="class")
    def project_config_update(self):
        return {"seeds": {"+column_types": {"my_id": "int"}}}

    @pytest.fixture(scope="class")
    def models(self):
        models = MetadataWithEmptyFlag.models.__wrapped__(self)
        for name, postgres, spark in (
            ("alter_column_type.sql", '"MY_VALUE", "varchar"', '"my_id", "bigint"'),
            ("alter_relation_add_remove_columns.sql", '"varchar"', '"string"'),
        ):
            assert postgres in models[name]
            models[name] = models[name].replace(postgres, spark)
        return models
