from dbt.tests.adapter.dbt_clone.test_dbt_clone import BaseClonePossible as _BaseClonePossible
from dbt.tests.adapter.dbt_clone.test_dbt_clone import BaseCloneNotPossible as _BaseCloneNotPossible
from dbt.tests.adapter.dbt_clone.test_dbt_clone import BaseCloneSameSourceAndTarget as _BaseCloneSameSourceAndTarget
from dbt.tests.adapter.dbt_clone.test_dbt_clone import BaseCloneSameTargetAndState as _BaseCloneSameTargetAndState


class TestClonePossible(_BaseClonePossible):
    pass


class TestCloneNotPossible(_BaseCloneNotPossible):
    pass


class TestCloneSameSourceAndTarget(_BaseCloneSameSourceAndTarget):
    pass


class TestCloneSameTargetAndState(_BaseCloneSameTargetAndState):
    pass
