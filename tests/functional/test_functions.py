"""Functions of a project: in SQL and in Python, scalar and aggregate, in all that calls them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from dbt.tests.util import run_dbt, write_file

from tests.functional.lake import rows
from tests.functional.orders_stream import ALL, ORDERS, SOURCES, land

PYTHON = {"entry_point": "main", "runtime_version": "3.11"}
DOUBLE = "price double"


def function(name: str, arguments: str, returns: str, **config: Any) -> dict[str, Any]:
    """A function's YAML; an argument is a name, a type and, behind `=`, a default."""
    described = []
    for argument in filter(None, arguments.split("; ")):
        declared, _, default = argument.partition(" = ")
        parameter, _, kind = declared.partition(" ")
        described.append({"name": parameter, "data_type": kind})
        if default:
            described[-1]["default_value"] = default
    return {
        "name": name,
        "config": config,
        "arguments": described,
        "returns": {"data_type": returns},
    }


def yaml_of(*functions: dict[str, Any]) -> str:
    return json.dumps({"functions": functions})


FUNCTIONS = {
    "taxed.sql": "select price * (1 + rate) as result -- with tax",
    # Its lambda has a variable of the name of a column.
    "all_taxed.sql": "transform(prices, id -> {{ function('taxed') }}(id) + extra)",
    "dearest.sql": "select max(price) from {{ ref('items') }}",
    "mean_taxed.sql": "{{ function('taxed') }}(sum(price) / count(price))",
    "slug.py": "import re\ndef main(name, mark):\n"
    "    return None if name is None else re.sub(r'\\W+', mark, name.lower())\n",
    "spread.py": "class main:\n    def __init__(self):\n        self.seen = []\n"
    "    def accumulate(self, price, weight):\n        self.seen.append(price * weight)\n"
    "    def finish(self):\n        return max(self.seen) - min(self.seen)\n",
    "functions.yml": yaml_of(
        function("taxed", "price double; rate double = 0.25", "double"),
        function("all_taxed", "prices array<double>; extra double", "array<double>"),
        function("dearest", "", "double"),
        function("mean_taxed", DOUBLE, "double", type="aggregate"),
        function("slug", "name string; mark string = '-'", "string", schema="text", **PYTHON),
        function("spread", "price double; weight int = 1", "double", type="aggregate", **PYTHON),
    ),
}
SLUG = "{{ function('slug') }}"
TAXED = "{{ function('taxed') }}"
MODELS = {
    "items.sql": "{{ config(materialized='table') }} select 1 as id, 'Blue Cup' as name, 4.0d as price"
    " union all select 2, 'Tea pot!', 8.0d union all select 3, null, 12.0d",
    "prices.sql": f"select id, {TAXED}(price) as taxed, {TAXED}(price, rate => id) as more,"
    " {{ function('all_taxed') }}(array(id, price), id) as every from {{ ref('items') }}",
    "named.sql": f"{{{{ config(materialized='incremental', unique_key='id') }}}}"
    f" select id, {SLUG}(name) as slug, {SLUG}(name, mark => '_') as other,"
    " {{ function('dearest') }}() as dearest from {{ ref('items') }}",
    "totals.sql": "{{ config(materialized='table') }} select id > 1 as late,"
    " {{ function('mean_taxed') }}(price) as mean from {{ ref('items') }} group by 1",
    # Spark has no Python aggregates beside others in one query.
    "spreads.sql": "{{ config(materialized='table') }} select id > 1 as late,"
    " {{ function('spread') }}(price, 2) as spread from {{ ref('items') }} group by 1",
    "models.yml": json.dumps(
        {
            "models": [{"name": "named", "columns": [{"name": "id", "data_tests": ["unique"]}]}],
            "unit_tests": [
                {
                    "name": "taxes",
                    "model": "prices",
                    "given": [{"input": "ref('items')", "rows": [{"id": 1, "price": 100.0}]}],
                    "expect": {"rows": [{"id": 1, "taxed": 125.0, "more": 200.0}]},
                }
            ],
        }
    ),
}
SNAPSHOT = (
    "{% snapshot history %}{{ config(unique_key='id', strategy='check', check_cols='all') }}"
    f" select id, {SLUG}(name) as slug from {{{{ ref('items') }}}} {{% endsnapshot %}}"
)
NAMED = "select * from {schema}.named order by id"


@pytest.mark.manifest
class TestCalls:
    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        return FUNCTIONS

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return MODELS

    @pytest.fixture(scope="class")
    def snapshots(self) -> dict[str, str]:
        return {"history.sql": SNAPSHOT}

    @pytest.fixture(scope="class")
    def tests(self) -> dict[str, str]:
        return {"cheap.sql": f"select * from {{{{ ref('items') }}}} where {SLUG}(name) = 'cup'"}

    def test_a_build(self, project: Any) -> None:
        run_dbt(["build"])
        assert rows(project, "select * from {schema}.prices order by id") == [
            (1, 5, 8, "[2.25, 6.0]"),
            (2, 10, 24, "[4.5, 12.0]"),
            (3, 15, 48, "[6.75, 18.0]"),
        ]
        assert rows(project, NAMED) == [
            (1, "blue-cup", "blue_cup", 12.0),
            (2, "tea-pot-", "tea_pot_", 12.0),
            (3, None, None, 12.0),
        ]
        totals = rows(project, "select * from {schema}.totals order by late")
        assert totals == [(False, 5.0), (True, 12.5)]
        spreads = rows(project, "select * from {schema}.spreads order by late")
        assert spreads == [(False, 0.0), (True, 8.0)]
        history = rows(project, "select slug from {schema}.history order by id")
        assert history == [("blue-cup",), ("tea-pot-",), (None,)]
        shutil.copytree(Path(project.project_root) / "target", Path(project.project_root) / "state")

    def test_a_changed_function_that_is_not_selected(self, project: Any) -> None:
        changed = FUNCTIONS["slug.py"].replace("lower", "upper")
        write_file(changed, project.project_root, "functions", "slug.py")
        # dbt gives the function the schema of the state, where the function is the project's, too.
        run_dbt(["run", "-s", "named", "--defer", "--favor-state", "--state", "state"])
        assert rows(project, NAMED)[:2] == [
            (1, "BLUE-CUP", "BLUE_CUP", 12.0),
            (2, "TEA-POT-", "TEA_POT_", 12.0),
        ]

    def test_show(self, project: Any) -> None:
        shown = run_dbt(["show", "--inline", f"select {TAXED}({TAXED}(16))"]).results[0]
        assert shown.agate_table.rows[0].values()[0] == 25


class TestStreams:
    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        described = yaml_of(
            function("taxed", DOUBLE, "double"), function("loud", "word string", "string", **PYTHON)
        )
        return {
            "taxed.sql": "price * 1.5",
            "loud.py": "def main(word):\n    return word and word.upper()\n",
            "functions.yml": described,
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        calls = (
            "{{ function('loud') }}(status) as status, {{ function('taxed') }}(amount) as amount"
        )
        return {
            "orders.sql": ORDERS.replace("select *", f"select id, {calls}, op"),
            "sources.yml": SOURCES,
        }

    def test_changes(self, project: Any) -> None:
        land(project, "1", (1, "new", 1.0, "c"), (2, "new", 2.0, "c"))
        run_dbt(["run"])
        land(project, "2", (1, "paid", 4.0, "u"), (2, None, None, "d"))
        run_dbt(["run"])
        assert rows(project, ALL) == [(1, "PAID", 6.0)]


class TestCachedResults:
    @pytest.fixture(scope="class")
    def dbt_profile_target(self, dbt_profile_target: dict[str, Any]) -> dict[str, Any]:
        return dbt_profile_target | {"result_cache": "disk"}

    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        volatile = {"volatility": "non-deterministic"}
        described = yaml_of(
            function("fixed", "n int", "int"),
            function("volatile", "n int", "int", **volatile),
            function("python", "n int", "int", **PYTHON),
        )
        return {
            "fixed.sql": "n + 1",
            "volatile.sql": "n + 1",
            "python.py": "def main(n):\n    return n + 1\n",
            "functions.yml": described,
        }

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "items.sql": "{{ config(materialized='table') }} select 1 as n",
            "seen.sql": "select {{ function('volatile') }}(n) as n from {{ ref('items') }}",
        }

    def ask(self, call: str) -> tuple[int, bool]:
        query = f"select {call} as n from {{{{ ref('items') }}}}"
        shown = run_dbt(["show", "--inline", query]).results[0]
        return shown.agate_table.rows[0].values()[0], bool(shown.adapter_response.get("from_cache"))

    def test_they_are_never_those_of_an_older_function(self, project: Any) -> None:
        run_dbt(["run"])
        fixed = "{{ function('fixed') }}(n)"
        assert [self.ask(fixed), self.ask(fixed)] == [(2, False), (2, True)]
        write_file("n + 2", project.project_root, "functions", "fixed.sql")
        assert self.ask(fixed) == (3, False)

    @pytest.mark.parametrize("name", ["volatile", "python"])
    def test_what_is_not_cached(self, project: Any, name: str) -> None:
        call = f"{{{{ function('{name}') }}}}(n)"
        assert [self.ask(call), self.ask(call)] == [(2, False), (2, False)]

    def test_a_view_with_a_volatile_function(self, project: Any) -> None:
        query = ["show", "--inline", "select n from {{ ref('seen') }}"]
        for _ in range(2):
            shown = run_dbt(query).results[0]
            assert shown.agate_table.rows[0].values()[0] == 2
            assert not shown.adapter_response.get("from_cache")


BAD: dict[str, tuple[dict[str, Any] | None, str, str]] = {
    "untyped.sql": (None, "1", "`returns` is missing: describe the function under `functions`"),
    "tabular.sql": (function("tabular", "", "int", type="table"), "1", "`type: table` is not supported"),
    "reading.sql": (
        function("reading", DOUBLE, "double"),
        "select max(n) from {{ target.schema }}.t where n < price",
        "its SQL reads tables, which only functions without arguments can do",
    ),
    "unknown.sql": (
        function("unknown", DOUBLE, "double"),
        "prize * 2",
        "its SQL uses `prize`, which is not one of its arguments: price",
    ),
    "summed.sql": (function("summed", DOUBLE, "double"), "sum(price)", "set `type: aggregate`"),
    "two.sql": (function("two", DOUBLE, "double"), "select price, price", "must be one expression"),
    "invalid.sql": (function("invalid", DOUBLE, "double"), "price * (", "is not an expression"),
    "refused.sql": (function("refused", DOUBLE, "nothing"), "price", "Unsupported data type"),
    "nowhere.py": (
        function("nowhere", DOUBLE, "double", **PYTHON),
        "def other(price): return 1",
        "`entry_point: main` is not defined in the file, which defines `other`",
    ),
    "syntax.py": (function("syntax", DOUBLE, "double", **PYTHON), "def main(:", "line 1 is not valid"),
    "stateless.py": (
        function("stateless", DOUBLE, "double", type="aggregate", **PYTHON),
        "def main(prices): return 1",
        "must be a class with the methods `accumulate` and `finish`",
    ),
}  # fmt: skip


class TestMistakes:
    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        bodies = {name: body for name, (_, body, _) in BAD.items()}
        described = [described for described, _, _ in BAD.values() if described is not None]
        described.append(function("fine", "n int", "int", **PYTHON))
        bodies["fine.py"] = "def main(n): return n"
        return bodies | {"functions.yml": yaml_of(*described)}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        call = "{{ function('fine') }}"
        return {
            "seen.sql": f"select {call}(1) as n",
            "many.sql": f"{{{{ config(materialized='table') }}}} select {call}(1, 2) as n",
        }

    @pytest.fixture(scope="class")
    def messages(self, project: Any) -> dict[str, str]:
        return {r.node.name: r.message for r in run_dbt(["build"], expect_pass=False)}

    @pytest.mark.parametrize("name", BAD)
    def test_the_message(self, messages: dict[str, str], name: str) -> None:
        assert BAD[name][2] in messages[name.split(".")[0]]

    def test_calls(self, messages: dict[str, str]) -> None:
        assert "Materialize the model as `table`, or write the function in SQL." in messages["seen"]
        assert "takes (n int); got 2: 1, 2. Correct the call." in messages["many"]


class TestHooks:
    """A hook calls a function before the run has staged the table that the function reads."""

    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        described = yaml_of(function("last_id", "", "int"))
        query = "select max(id) + count(t.one) from {{ ref('ids') }}, {{ ref('ones') }} as t"
        return {"last_id.sql": query, "functions.yml": described}

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        return {
            "ids.sql": "{{ config(materialized='table') }} select {{ var('id', 1) }} as id",
            "ones.sql": "{{ config(materialized='ephemeral') }} select 1 as one",
            "last.sql": "{{ config(materialized='table') }} select {{ function('last_id') }}() as n",
        }

    @pytest.fixture(scope="class")
    def project_config_update(self) -> dict[str, Any]:
        hook = "{% if var('hook', false) %}select {{ function('last_id') }}(){% endif %}"
        return {"on-run-start": [hook]}

    def test_a_model_reads_what_the_run_has_staged(self, project: Any) -> None:
        run_dbt(["run"])
        run_dbt(["run", "--vars", "{id: 2, hook: true, iceberg_stream_publish: atomic}"])
        assert rows(project, "select n from {schema}.last") == [(3,)]


class TestPackages:
    @pytest.fixture(scope="class")
    def functions(self) -> dict[str, str]:
        described = [
            function(name, "n int", "int", packages=[package], **PYTHON)
            for name, package in (("absent", "no-such-package"), ("old", "pyarrow<1"))
        ]
        code = "def main(n): return n"
        return {"absent.py": code, "old.py": code, "functions.yml": yaml_of(*described)}

    def test_the_message(self, project: Any, dbt_profile_target: dict[str, Any]) -> None:
        if dbt_profile_target.get("method") == "connect":
            pytest.skip("packages of a cluster are checked when its workers run a function")
        messages = {r.node.name: r.message for r in run_dbt(["build"], expect_pass=False)}
        assert "no-such-package is not installed where dbt runs" in messages["absent"]
        assert "pyarrow<1 is required, but pyarrow" in messages["old"]
