"""The number of threads changes nothing in the tables that a run builds."""

from __future__ import annotations

from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

SCHEMA_NAME = """
{% macro generate_schema_name(custom, node) -%}
  {{ target.schema }}_{{ var('threads') }}
{%- endmacro %}"""
NODE = """
{{{{ config(materialized='{kind}', unique_key='id') }}}}
select one.id, (one.v * 3 + other.v) % 1000003 as v
from {{{{ ref('{one}') }}}} as one join {{{{ ref('{other}') }}}} as other on other.id = one.id
{{% if is_incremental() %}}where one.id > 1{{% endif %}}
"""
SNAPSHOT = """
{{% snapshot history_{number:03} %}}
{{{{ config(unique_key='id', strategy='check', check_cols=['v']) }}}}
select id, max(v) as v from {{{{ ref('node_{number:03}') }}}} group by id
{{% endsnapshot %}}"""
RAW = "id,v\n1,10\n2,20\n3,30\n"
KINDS = ("view", "table", "incremental", "table")
WIDTH = 8


class Threads:
    """Models in layers, each of which reads two of the layer before, and snapshots of some."""

    COUNT: int

    @pytest.fixture(scope="class")
    def seeds(self) -> dict[str, str]:
        return {"raw.csv": RAW}

    @pytest.fixture(scope="class")
    def macros(self) -> dict[str, str]:
        return {"schema_name.sql": SCHEMA_NAME}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        files = {}
        for number in range(self.COUNT):
            layer, place = divmod(number, WIDTH)
            above = [f"node_{(layer - 1) * WIDTH + (place + step) % WIDTH:03}" for step in (0, 3)]
            one, other = above if layer else ("raw", "raw")
            kind = KINDS[(layer + place) % len(KINDS)]
            files[f"node_{number:03}.sql"] = NODE.format(kind=kind, one=one, other=other)
        return files

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        numbers = range(0, self.COUNT, 7)
        return {f"history_{number:03}.sql": SNAPSHOT.format(number=number) for number in numbers}

    def test_tables(self, project: Any) -> None:
        for text in (RAW, RAW.replace("20", "21") + "4,40\n"):
            write_file(text, project.project_root, "seeds", "raw.csv")
            for threads in (1, 16):
                variables = f"{{threads: {threads}}}"
                run_dbt(["build", "--threads", str(threads), "--vars", variables])
        one, sixteen = (self.contents(project, threads) for threads in (1, 16))
        assert len(one) > self.COUNT / 2
        assert one == sixteen

    def contents(self, project: Any, threads: int) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables as PyIceberg reads them, without the times of snapshots."""
        catalog = project.adapter.catalog
        namespace = f"{project.test_schema}_{threads}"
        contents = {}
        for name, kind in catalog.relations(namespace):
            if kind == "table":
                rows = catalog.pyiceberg.load_table((namespace, name)).scan().to_arrow()
                kept = [c for c in rows.column_names if c in ("id", "v")]
                contents[name] = sorted(
                    tuple(row.values()) for row in rows.select(kept).to_pylist()
                )
        return contents


class TestThreads(Threads):
    COUNT = 12


@pytest.mark.slow
class TestManyThreads(Threads):
    COUNT = 300
