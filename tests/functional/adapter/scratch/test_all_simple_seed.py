from dbt.tests.adapter.simple_seed.test_seed import BaseBasicSeedTests as _BaseBasicSeedTests
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedConfigFullRefreshOn as _BaseSeedConfigFullRefreshOn
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedConfigFullRefreshOff as _BaseSeedConfigFullRefreshOff
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedCustomSchema as _BaseSeedCustomSchema
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedWithUniqueDelimiter as _BaseSeedWithUniqueDelimiter
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedWithWrongDelimiter as _BaseSeedWithWrongDelimiter
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedWithEmptyDelimiter as _BaseSeedWithEmptyDelimiter
from dbt.tests.adapter.simple_seed.test_seed import BaseSimpleSeedEnabledViaConfig as _BaseSimpleSeedEnabledViaConfig
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedParsing as _BaseSeedParsing
from dbt.tests.adapter.simple_seed.test_seed import BaseSimpleSeedWithBOM as _BaseSimpleSeedWithBOM
from dbt.tests.adapter.simple_seed.test_seed import BaseSeedSpecificFormats as _BaseSeedSpecificFormats
from dbt.tests.adapter.simple_seed.test_seed import BaseTestEmptySeed as _BaseTestEmptySeed
from dbt.tests.adapter.simple_seed.test_seed_type_override import BaseSimpleSeedColumnOverride as _BaseSimpleSeedColumnOverride


class TestBasicSeedTests(_BaseBasicSeedTests):
    pass


class TestSeedConfigFullRefreshOn(_BaseSeedConfigFullRefreshOn):
    pass


class TestSeedConfigFullRefreshOff(_BaseSeedConfigFullRefreshOff):
    pass


class TestSeedCustomSchema(_BaseSeedCustomSchema):
    pass


class TestSeedWithUniqueDelimiter(_BaseSeedWithUniqueDelimiter):
    pass


class TestSeedWithWrongDelimiter(_BaseSeedWithWrongDelimiter):
    pass


class TestSeedWithEmptyDelimiter(_BaseSeedWithEmptyDelimiter):
    pass


class TestSimpleSeedEnabledViaConfig(_BaseSimpleSeedEnabledViaConfig):
    pass


class TestSeedParsing(_BaseSeedParsing):
    pass


class TestSimpleSeedWithBOM(_BaseSimpleSeedWithBOM):
    pass


class TestSeedSpecificFormats(_BaseSeedSpecificFormats):
    pass


class TestTestEmptySeed(_BaseTestEmptySeed):
    pass


class TestSimpleSeedColumnOverride(_BaseSimpleSeedColumnOverride):
    pass
