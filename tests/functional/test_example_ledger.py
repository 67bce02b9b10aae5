"""The example's project: both months, the branch, and the history of the balances."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from dbt.tests.util import run_dbt

from examples.ledger.demo import APRIL, AUDIT, MOVE_MAIN
from tests.functional.lake import rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "ledger"
BALANCES = "select account, balance from {schema}.balances order by account"
VERSIONS = "select balance from {schema}.balance_history where account = 'ada' order by balance"


class TestExample:
    @pytest.fixture(scope="class")
    def dbt_profile_target(
        self, dbt_profile_target: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
    ) -> dict[str, Any]:
        archive = {"warehouse": str(tmp_path_factory.mktemp("archive"))}
        return {**dbt_profile_target, "catalogs": {"archive": archive}}

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        config = yaml.safe_load((EXAMPLE / "dbt_project.yml").read_text())
        return {
            "vars": config["vars"],
            "models": {"test": config["models"]["ledger"]},
            "data_tests": {"test": config["data_tests"]["ledger"]},
        }

    @pytest.fixture(scope="class")
    def example(self, project: Any) -> Path:
        root = Path(project.project_root)
        for folder in ("models", "functions", "snapshots"):
            shutil.copytree(EXAMPLE / folder, root / folder, dirs_exist_ok=True)
        return root

    def test_two_months(self, project: Any, example: Path) -> None:
        shutil.copytree(EXAMPLE / "landing" / "2026-03", example / "landing" / "2026-03")
        run_dbt(["build"])
        shutil.copytree(EXAMPLE / "landing" / "2026-04", example / "landing" / "2026-04")
        run_dbt(["build", *APRIL])
        since_march = "select account, since_march from {schema}.since_march order by account"
        assert rows(project, since_march) == [
            ("ada", Decimal(-200)),
            ("edsger", Decimal(500)),
            ("grace", Decimal(31)),
        ]
        closings = f"select month, count(*) from archive.{project.test_schema}.closings group by 1"
        assert sorted(rows(project, closings)) == [("2026-03", 2), ("2026-04", 3)]

    def test_a_branch(self, project: Any, example: Path) -> None:
        before = rows(project, BALANCES)
        run_dbt(["run", "--select", "bookings", "balances", *AUDIT])
        assert rows(project, BALANCES) == before
        move_main = MOVE_MAIN.replace("ledger.", f"{project.test_schema}.")
        for table in ("bookings", "balances"):
            run_dbt(["show", "--inline", move_main.format(table)])
        assert rows(project, BALANCES) == [
            ("ada", Decimal("953.86")),
            ("edsger", Decimal("499.95")),
            ("grace", Decimal("818.35")),
        ]
        run_dbt(["snapshot"])
        versions = [Decimal("953.86"), Decimal("954.01"), Decimal("1154.01")]
        assert [row[0] for row in rows(project, VERSIONS)] == versions
