from dbt.tests.adapter.sample_mode.test_sample_mode import BaseSampleModeTest as _BaseSampleModeTest


class TestSampleModeTest(_BaseSampleModeTest):
    pass
