"""Lets the official suite run on Spark: its fixtures are translated as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dbt.tests.fixtures.project as project_fixtures
import dbt.tests.util as util
import pytest

from tests.functional.adapter import dialect

write_file = util.write_file
run_sql_with_adapter = util.run_sql_with_adapter


def write_translated(contents: str, *paths: str) -> None:
    """Write a project file; SQL is translated unless it is ours or a macro."""
    is_model = str(paths[-1]).endswith(".sql") and "macros" not in [str(part) for part in paths]
    write_file(dialect.model(contents) if is_model else contents, *paths)


def run_translated(adapter: Any, sql: str, fetch: str | None = None) -> Any:
    if sql.strip() == "":
        return None
    credentials = adapter.config.credentials
    names = {"schema": credentials.schema, "database": credentials.database}

    def schema(table: str) -> dict[str, str]:
        actual = adapter.catalog.columns((credentials.schema, table))
        return {column.name.lower(): column.type for column in actual}

    result = None
    for statement in dialect.statements(sql.format(**names), schema):
        result = run_sql_with_adapter(
            adapter, statement.replace("{", "{{").replace("}", "}}"), fetch
        )
    return result


def tables_in_schema(project: Any) -> dict[str, str]:
    """Names and kinds of what is in the test's schema: Iceberg has no information_schema."""
    schema = project.adapter.Relation.create(project.database, project.test_schema)
    with util.get_connection(project.adapter):
        actual = project.adapter.list_relations_without_caching(schema)
    return {relation.identifier: str(relation.type) for relation in actual}


@pytest.fixture(autouse=True, scope="session")
def postgres_dialect() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(project_fixtures, "write_file", write_translated)
        patch.setattr(util, "write_file", write_translated)
        patch.setattr(project_fixtures, "run_sql_with_adapter", run_translated)
        patch.setattr(util, "run_sql_with_adapter", run_translated)
        patch.setattr(project_fixtures.TestProjInfo, "get_tables_in_schema", tables_in_schema)
        yield


@pytest.fixture(scope="class")
def test_data_dir(request: pytest.FixtureRequest) -> Path:
    return Path(str(request.fspath)).parent / "data"
