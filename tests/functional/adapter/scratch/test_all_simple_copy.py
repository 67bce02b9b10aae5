from dbt.tests.adapter.simple_copy.test_copy_uppercase import BaseSimpleCopyUppercase as _BaseSimpleCopyUppercase
from dbt.tests.adapter.simple_copy.test_simple_copy import SimpleCopyBase as _SimpleCopyBase
from dbt.tests.adapter.simple_copy.test_simple_copy import EmptyModelsArentRunBase as _EmptyModelsArentRunBase


class TestSimpleCopyUppercase(_BaseSimpleCopyUppercase):
    pass


class TestSimpleCopyBase(_SimpleCopyBase):
    pass


class TestEmptyModelsArentRunBase(_EmptyModelsArentRunBase):
    pass
