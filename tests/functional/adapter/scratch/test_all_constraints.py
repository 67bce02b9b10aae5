from dbt.tests.adapter.constraints.test_constraints import BaseConstraintsColumnsEqual as _BaseConstraintsColumnsEqual
from dbt.tests.adapter.constraints.test_constraints import BaseConstraintsRuntimeDdlEnforcement as _BaseConstraintsRuntimeDdlEnforcement
from dbt.tests.adapter.constraints.test_constraints import BaseConstraintsRollback as _BaseConstraintsRollback
from dbt.tests.adapter.constraints.test_constraints import BaseTableConstraintsColumnsEqual as _BaseTableConstraintsColumnsEqual
from dbt.tests.adapter.constraints.test_constraints import BaseViewConstraintsColumnsEqual as _BaseViewConstraintsColumnsEqual
from dbt.tests.adapter.constraints.test_constraints import BaseIncrementalConstraintsColumnsEqual as _BaseIncrementalConstraintsColumnsEqual
from dbt.tests.adapter.constraints.test_constraints import BaseIncrementalConstraintsRuntimeDdlEnforcement as _BaseIncrementalConstraintsRuntimeDdlEnforcement
from dbt.tests.adapter.constraints.test_constraints import BaseIncrementalConstraintsRollback as _BaseIncrementalConstraintsRollback
from dbt.tests.adapter.constraints.test_constraints import BaseContractSqlHeader as _BaseContractSqlHeader
from dbt.tests.adapter.constraints.test_constraints import BaseTableContractSqlHeader as _BaseTableContractSqlHeader
from dbt.tests.adapter.constraints.test_constraints import BaseIncrementalContractSqlHeader as _BaseIncrementalContractSqlHeader
from dbt.tests.adapter.constraints.test_constraints import BaseModelConstraintsRuntimeEnforcement as _BaseModelConstraintsRuntimeEnforcement
from dbt.tests.adapter.constraints.test_constraints import BaseConstraintQuotedColumn as _BaseConstraintQuotedColumn
from dbt.tests.adapter.constraints.test_constraints import BaseIncrementalForeignKeyConstraint as _BaseIncrementalForeignKeyConstraint


class TestConstraintsColumnsEqual(_BaseConstraintsColumnsEqual):
    pass


class TestConstraintsRuntimeDdlEnforcement(_BaseConstraintsRuntimeDdlEnforcement):
    pass


class TestConstraintsRollback(_BaseConstraintsRollback):
    pass


class TestTableConstraintsColumnsEqual(_BaseTableConstraintsColumnsEqual):
    pass


class TestViewConstraintsColumnsEqual(_BaseViewConstraintsColumnsEqual):
    pass


class TestIncrementalConstraintsColumnsEqual(_BaseIncrementalConstraintsColumnsEqual):
    pass


class TestIncrementalConstraintsRuntimeDdlEnforcement(_BaseIncrementalConstraintsRuntimeDdlEnforcement):
    pass


class TestIncrementalConstraintsRollback(_BaseIncrementalConstraintsRollback):
    pass


class TestContractSqlHeader(_BaseContractSqlHeader):
    pass


class TestTableContractSqlHeader(_BaseTableContractSqlHeader):
    pass


class TestIncrementalContractSqlHeader(_BaseIncrementalContractSqlHeader):
    pass


class TestModelConstraintsRuntimeEnforcement(_BaseModelConstraintsRuntimeEnforcement):
    pass


class TestConstraintQuotedColumn(_BaseConstraintQuotedColumn):
    pass


class TestIncrementalForeignKeyConstraint(_BaseIncrementalForeignKeyConstraint):
    pass
