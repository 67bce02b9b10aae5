from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dbt.tests.adapter.simple_seed import fixtures, seeds
from dbt.tests.adapter.simple_seed.test_seed import (
    BaseBasicSeedTests,
    BaseSeedConfigFullRefreshOff,
    BaseSeedConfigFullRefreshOn,
    BaseSeedCustomSchema,
    BaseSeedParsing,
    BaseSeedSpecificFormats,
    BaseSeedWithEmptyDelimiter,
    BaseSeedWithUniqueDelimiter,
    BaseSeedWithWrongDelimiter,
    BaseSimpleSeedEnabledViaConfig,
    BaseSimpleSeedWithBOM,
    BaseTestEmptySeed,
)
from dbt.tests.adapter.simple_seed.test_seed_type_override import BaseSimpleSeedColumnOverride
from dbt.tests.util import copy_file, get_relation_columns, run_dbt


# A full refresh replaces the seed in one commit: nothing is dropped, so no model goes with it.
class TestBasicSeedTests(BaseBasicSeedTests):
    def test_simple_seed_full_refresh_flag(self, project):
        self._build_relations_for_test(project)
        result = run_dbt(["seed", "--full-refresh"])
        self._check_relation_end_state(run_result=result, project=project, exists=True)


# A full refresh replaces the seed in one commit: nothing is dropped, so no model goes with it.
class TestSeedConfigFullRefreshOn(BaseSeedConfigFullRefreshOn):
    def test_simple_seed_full_refresh_config(self, project):
        self._build_relations_for_test(project)
        self._check_relation_end_state(run_result=run_dbt(["seed"]), project=project, exists=True)


class TestSeedConfigFullRefreshOff(BaseSeedConfigFullRefreshOff):
    pass


class TestSeedCustomSchema(BaseSeedCustomSchema):
    pass


class TestSeedWithUniqueDelimiter(BaseSeedWithUniqueDelimiter):
    pass


# Column names are quoted, so the line is no syntax error but one column with a long name.
class TestSeedWithWrongDelimiter(BaseSeedWithWrongDelimiter):
    def test_seed_with_wrong_delimiter(self, project):
        run_dbt(["seed"])
        columns = get_relation_columns(project.adapter, "seed_pipe_separated")
        assert [name for name, *_ in columns] == ["seed_id|first_name|email|ip_address|birthday"]


class TestSeedWithEmptyDelimiter(BaseSeedWithEmptyDelimiter):
    pass


class TestSimpleSeedEnabledViaConfig(BaseSimpleSeedEnabledViaConfig):
    pass


class TestSeedParsing(BaseSeedParsing):
    pass


# The file with the byte order mark lies in the suite's folder, not beside this file.
class TestSimpleSeedWithBOM(BaseSimpleSeedWithBOM):
    @pytest.fixture(scope="class", autouse=True)
    def setUp(self, project):
        project.run_sql(seeds.seeds__expected_sql)
        target = Path(project.project_root) / "seeds" / "seed_bom.csv"
        copy_file(str(Path(seeds.__file__).parent), "seed_bom.csv", target, "")


# No dots in the file's name: Iceberg's catalogs take a dot in a table's name for a namespace.
class TestSeedSpecificFormats(BaseSeedSpecificFormats):
    @pytest.fixture(scope="class")
    def test_data_dir(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("seeds") / "big_seed"

    @pytest.fixture(scope="class")
    def seeds(self, test_data_dir: Path) -> dict[str, Any]:
        return {
            "big_seed.csv": self._make_big_seed(test_data_dir).read_text(),
            "seed_without_dots.csv": seeds.seed__with_dots_csv,
            "seed_unicode.csv": seeds.seed__unicode_csv,
        }


class TestEmptySeed(BaseTestEmptySeed):
    pass


# Spark's types instead of Postgres's; whole numbers of a seed are bigint.
class TestSimpleSeedColumnOverride(BaseSimpleSeedColumnOverride):
    @pytest.fixture(scope="class")
    def models(self):
        types = {
            "type: timestamp without time zone": "type: timestamp",
            "type: text": "type: string",
            "type: integer": "type: bigint",
        }
        properties = fixtures.properties__schema_yml
        for postgres, spark in types.items():
            properties = properties.replace(postgres, spark)
        return {"schema.yml": properties}

    @staticmethod
    def seed_enabled_types():
        return {"seed_id": "string", "birthday": "date"}

    @staticmethod
    def seed_tricky_types():
        columns = ("seed_id_str", "looks_like_a_bool", "looks_like_a_date")
        return dict.fromkeys(columns, "string")
