from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooks as _BasePrePostModelHooks
from dbt.tests.adapter.hooks.test_model_hooks import BaseHookRefs as _BaseHookRefs
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksOnSeeds as _BasePrePostModelHooksOnSeeds
from dbt.tests.adapter.hooks.test_model_hooks import BaseHooksRefsOnSeeds as _BaseHooksRefsOnSeeds
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksOnSeedsPlusPrefixed as _BasePrePostModelHooksOnSeedsPlusPrefixed
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksOnSeedsPlusPrefixedWhitespace as _BasePrePostModelHooksOnSeedsPlusPrefixedWhitespace
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksOnSnapshots as _BasePrePostModelHooksOnSnapshots
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksInConfig as _BasePrePostModelHooksInConfig
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksInConfigWithCount as _BasePrePostModelHooksInConfigWithCount
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostModelHooksInConfigKwargs as _BasePrePostModelHooksInConfigKwargs
from dbt.tests.adapter.hooks.test_model_hooks import BasePrePostSnapshotHooksInConfigKwargs as _BasePrePostSnapshotHooksInConfigKwargs
from dbt.tests.adapter.hooks.test_model_hooks import BaseDuplicateHooksInConfigs as _BaseDuplicateHooksInConfigs
from dbt.tests.adapter.hooks.test_run_hooks import BasePrePostRunHooks as _BasePrePostRunHooks
from dbt.tests.adapter.hooks.test_run_hooks import BaseAfterRunHooks as _BaseAfterRunHooks


class TestPrePostModelHooks(_BasePrePostModelHooks):
    pass


class TestHookRefs(_BaseHookRefs):
    pass


class TestPrePostModelHooksOnSeeds(_BasePrePostModelHooksOnSeeds):
    pass


class TestHooksRefsOnSeeds(_BaseHooksRefsOnSeeds):
    pass


class TestPrePostModelHooksOnSeedsPlusPrefixed(_BasePrePostModelHooksOnSeedsPlusPrefixed):
    pass


class TestPrePostModelHooksOnSeedsPlusPrefixedWhitespace(_BasePrePostModelHooksOnSeedsPlusPrefixedWhitespace):
    pass


class TestPrePostModelHooksOnSnapshots(_BasePrePostModelHooksOnSnapshots):
    pass


class TestPrePostModelHooksInConfig(_BasePrePostModelHooksInConfig):
    pass


class TestPrePostModelHooksInConfigWithCount(_BasePrePostModelHooksInConfigWithCount):
    pass


class TestPrePostModelHooksInConfigKwargs(_BasePrePostModelHooksInConfigKwargs):
    pass


class TestPrePostSnapshotHooksInConfigKwargs(_BasePrePostSnapshotHooksInConfigKwargs):
    pass


class TestDuplicateHooksInConfigs(_BaseDuplicateHooksInConfigs):
    pass


class TestPrePostRunHooks(_BasePrePostRunHooks):
    pass


class TestAfterRunHooks(_BaseAfterRunHooks):
    pass
