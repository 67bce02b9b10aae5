from dbt.tests.adapter.empty.test_empty import BaseTestEmpty as _BaseTestEmpty
from dbt.tests.adapter.empty.test_empty import BaseTestEmptyInlineSourceRef as _BaseTestEmptyInlineSourceRef
from dbt.tests.adapter.empty.test_empty import BaseTestEmptySeedFlag as _BaseTestEmptySeedFlag
from dbt.tests.adapter.empty.test_empty import MetadataWithEmptyFlag as _MetadataWithEmptyFlag


class TestTestEmpty(_BaseTestEmpty):
    pass


class TestTestEmptyInlineSourceRef(_BaseTestEmptyInlineSourceRef):
    pass


class TestTestEmptySeedFlag(_BaseTestEmptySeedFlag):
    pass


class TestMetadataWithEmptyFlag(_MetadataWithEmptyFlag):
    pass
