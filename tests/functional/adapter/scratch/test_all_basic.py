from dbt.tests.adapter.basic.test_adapter_methods import BaseAdapterMethod as _BaseAdapterMethod
from dbt.tests.adapter.basic.test_base import BaseSimpleMaterializations as _BaseSimpleMaterializations
from dbt.tests.adapter.basic.test_docs_generate import BaseDocsGenerate as _BaseDocsGenerate
from dbt.tests.adapter.basic.test_docs_generate import BaseDocsGenReferences as _BaseDocsGenReferences
from dbt.tests.adapter.basic.test_empty import BaseEmpty as _BaseEmpty
from dbt.tests.adapter.basic.test_ephemeral import BaseEphemeral as _BaseEphemeral
from dbt.tests.adapter.basic.test_generic_tests import BaseGenericTests as _BaseGenericTests
from dbt.tests.adapter.basic.test_get_catalog_for_single_relation import BaseGetCatalogForSingleRelation as _BaseGetCatalogForSingleRelation
from dbt.tests.adapter.basic.test_incremental import BaseIncremental as _BaseIncremental
from dbt.tests.adapter.basic.test_incremental import BaseIncrementalNotSchemaChange as _BaseIncrementalNotSchemaChange
from dbt.tests.adapter.basic.test_incremental import BaseIncrementalBadStrategy as _BaseIncrementalBadStrategy
from dbt.tests.adapter.basic.test_singular_tests import BaseSingularTests as _BaseSingularTests
from dbt.tests.adapter.basic.test_singular_tests_ephemeral import BaseSingularTestsEphemeral as _BaseSingularTestsEphemeral
from dbt.tests.adapter.basic.test_snapshot_check_cols import BaseSnapshotCheckCols as _BaseSnapshotCheckCols
from dbt.tests.adapter.basic.test_snapshot_timestamp import BaseSnapshotTimestamp as _BaseSnapshotTimestamp
from dbt.tests.adapter.basic.test_table_materialization import BaseTableMaterialization as _BaseTableMaterialization
from dbt.tests.adapter.basic.test_validate_connection import BaseValidateConnection as _BaseValidateConnection


class TestAdapterMethod(_BaseAdapterMethod):
    pass


class TestSimpleMaterializations(_BaseSimpleMaterializations):
    pass


class TestDocsGenerate(_BaseDocsGenerate):
    pass


class TestDocsGenReferences(_BaseDocsGenReferences):
    pass


class TestEmpty(_BaseEmpty):
    pass


class TestEphemeral(_BaseEphemeral):
    pass


class TestGenericTests(_BaseGenericTests):
    pass


class TestGetCatalogForSingleRelation(_BaseGetCatalogForSingleRelation):
    pass


class TestIncremental(_BaseIncremental):
    pass


class TestIncrementalNotSchemaChange(_BaseIncrementalNotSchemaChange):
    pass


class TestIncrementalBadStrategy(_BaseIncrementalBadStrategy):
    pass


class TestSingularTests(_BaseSingularTests):
    pass


class TestSingularTestsEphemeral(_BaseSingularTestsEphemeral):
    pass


class TestSnapshotCheckCols(_BaseSnapshotCheckCols):
    pass


class TestSnapshotTimestamp(_BaseSnapshotTimestamp):
    pass


class TestTableMaterialization(_BaseTableMaterialization):
    pass


class TestValidateConnection(_BaseValidateConnection):
    pass
