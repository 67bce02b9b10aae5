"""Functions of dbt's manifest: which ones a statement needs, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.catalog.catalogs import one_catalog
from dbt.adapters.iceberg_stream.engines.python_functions import PythonAggregate
from dbt.adapters.iceberg_stream.sessions.cursor import Handle
from dbt.adapters.iceberg_stream.sessions.function_definition import parse_function
from dbt.adapters.iceberg_stream.sessions.functions import ProjectFunctions


@dataclass
class Node:
    """A function in the manifest, as much as the adapter reads of it."""

    identifier: str
    raw_code: str
    arguments: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    schema: str = "s"
    language: str = "sql"
    returns: str = "int"
    compiled: bool = False
    compiled_code: str | None = None
    defer_function: Any = None
    depends_on: Any = field(default_factory=lambda: SimpleNamespace(nodes=[]))
    overloads: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self, omit_none: bool) -> dict[str, Any]:
        return vars(self) | {
            "unique_id": f"function.shop.{self.identifier}",
            "original_file_path": f"functions/{self.identifier}",
            "returns": {"data_type": self.returns},
        }


N = {"name": "n", "data_type": "int"}
PYTHON = {"entry_point": "main", "runtime_version": "3.11"}


def python(identifier: str, code: str = "def main(n): return n", **config: Any) -> Node:
    return Node(identifier, code, [N], PYTHON | config, language="python")


def project(*nodes: Node) -> ProjectFunctions:
    def compile_node(node: Node) -> None:
        node.compiled, node.compiled_code = True, node.raw_code

    manifest = {f"function.shop.{i}.{node.identifier}": node for i, node in enumerate(nodes)}
    return ProjectFunctions(lambda: manifest, compile_node, local=True)


def test_a_statement_gets_the_functions_that_it_needs() -> None:
    functions = project(
        python("loud"),
        Node("next", "`s.loud`(n) + 1", [N]),
        Node("broken", "(", [N]),
    )
    prepared = functions.prepare("select `s.next`(1)")
    assert "`s.loud`(cast((cast((1) as int)) as int)) + 1" in prepared.sql
    assert [definition.signature.name for definition in prepared.python] == ["s.loud"]
    assert functions.prepare("select 1").python == ()


def test_the_definition_follows_the_node() -> None:
    node = Node("f", "n + 1", [N])
    functions = project(node)
    assert "+ 1" in functions.prepare("`s.f`(1)").sql
    node.compiled_code = "n + 2"
    assert "+ 2" in functions.prepare("`s.f`(1)").sql


def test_a_function_is_compiled_again_if_its_text_may_be_another_one() -> None:
    node, reading = Node("f", "n + 1", [N]), Node("g", "select max(n) from s.rates")
    reading.depends_on.nodes.append("model.shop.rates")
    for _ in range(2):
        # Two commands with one manifest.
        functions = project(node, reading)
        assert node.raw_code in functions.prepare("`s.f`(1)").sql.replace("cast((1) as int)", "n")
        node.raw_code = "n + 2"
    for table in ("rates", "rates__dbt_build_pr"):
        reading.raw_code = f"select max(n) from s.{table}"
        assert functions.prepare("`s.g`()").sql == f"cast((select max(n) from s.{table}) as int)"


def test_a_deferred_name_is_that_of_the_same_function() -> None:
    deferred = Node("f", "n + 9", schema="production")
    functions = project(Node("f", "n + 1", [N], defer_function=deferred))
    assert "+ 1" in functions.prepare("select `production.f`(1)").sql


def test_functions_of_the_same_name() -> None:
    with pytest.raises(CompilationError, match=r"have the same name, s\.f\. Functions cannot be"):
        project(Node("f", "1"), Node("f", "2")).prepare("select 1")


@pytest.mark.parametrize(
    "sql",
    [
        "create or replace view lake.s.v as select `s.loud`(1)",
        "create view v as select `s.next`(1)",
    ],
)
def test_no_view_calls_a_python_function(sql: str) -> None:
    functions = project(python("loud"), Node("next", "`s.loud`(n) + 1", [N]))
    with pytest.raises(CompilationError, match="The view calls `s.loud`, a Python function"):
        functions.prepare(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "create view v as select `s.f`(1)",
        "create temporary view v as select `s.loud`(1)",
        "create view v as select '`s.loud`(1)' as doc -- was `s.loud`(n)\n from t",
    ],
)
def test_other_views(sql: str) -> None:
    assert project(python("loud"), Node("f", "n", [N])).prepare(sql).sql


def test_a_check_of_a_function() -> None:
    check = project(Node("f", "n", [N, {"name": "m", "data_type": "date"}])).get_check_sql(
        "function.shop.0.f"
    )
    assert check == "describe query select `s.f`(cast(null as int), cast(null as date))"


AGGREGATE = "class main:\n  def accumulate(self, n): pass\n  def finish(self): return 1"
ERRORS = {
    "javascript": (Node("f", "return 1", language="javascript"), "the language `javascript` is not"),
    "no yaml": (Node("f", "1", returns="INVALID_TYPE"), "`returns` is missing"),
    "table": (Node("f", "1", config={"type": "table"}), "`type: table` is not supported"),
    "grants": (Node("f", "1", config={"grants": {"select": "me"}}), "`grants` cannot be applied"),
    "overloads": (Node("f", "1", overloads=[{"defined_in": "g"}]), "`overloads` are not supported"),
    "twice": (Node("f", "n", [N, {"name": "N", "data_type": "int"}]), "have the name `n`"),
    "default": (Node("f", "n", [N | {"default_value": [1]}]), "must be a SQL expression"),
    "a column": (Node("f", "n", [N | {"default_value": "id"}]), "got 'id': its SQL uses `id`"),
    "aggregate": (Node("f", "sum(n)", [N]), "set `type: aggregate`"),
    "no version": (python("f", runtime_version=None), "A `runtime_version` is required"),
    "no entry": (python("f", entry_point=None), "An `entry_point` is required"),
    "a class": (python("f", "class main: pass"), "must be a function"),
    "async": (python("f", "async def main(n): return n"), "must be a function"),
    "nothing": (python("f", ""), "is not defined in the file, which defines nothing"),
    "no arguments": (
        Node("f", AGGREGATE, [], PYTHON | {"type": "aggregate"}, language="python"),
        "needs at least one argument",
    ),
    "no methods": (python("f", "class main: pass", type="aggregate"), "`accumulate` and `finish`"),
    "package": (python("f", packages=["no-such-package"]), "is not installed where dbt runs"),
    "old": (python("f", packages=["pyarrow<1"]), "pyarrow<1 is required, but pyarrow"),
    "requirement": (python("f", packages=["py arrow"]), "is not a requirement"),
}  # fmt: skip


def parse(node: Node, local: bool = True) -> Any:
    node.compiled_code = node.raw_code
    return parse_function(node.to_dict(omit_none=True), f"s.{node.identifier}", local)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    node, message = ERRORS[name]
    with pytest.raises(CompilationError) as raised:
        parse(node)
    assert message in str(raised.value)
    assert "function.shop.f (functions/f) has errors" in str(raised.value)


def test_all_errors_are_in_one_message() -> None:
    with pytest.raises(CompilationError) as raised:
        parse(python("f", "def other(): pass", type="table", packages=["no-such-package"]))
    assert str(raised.value).count("  - ") == 3


def test_packages_of_a_cluster_are_not_those_here() -> None:
    assert parse(python("f", packages=["no-such-package"]), local=False).python


@pytest.mark.parametrize(
    ("volatility", "volatile", "deterministic"),
    [
        (None, False, True),
        ("deterministic", False, True),
        ("stable", True, True),
        ("non-deterministic", True, False),
    ],
)
def test_volatility(volatility: str | None, volatile: bool, deterministic: bool) -> None:
    definition = parse(python("f", volatility=volatility))
    assert definition.signature.volatile is volatile
    assert definition.deterministic is deterministic


@pytest.mark.parametrize(
    ("value", "default"), [(None, None), (1, "1"), (True, "true"), ("'EUR'", "'EUR'")]
)
def test_defaults(value: Any, default: str | None) -> None:
    definition = parse(Node("f", "n", [N | {"default_value": value}]))
    assert definition.signature.parameters[0].default == default


def test_an_aggregate_may_inherit_its_methods() -> None:
    code = "from shop import Base\nclass main(Base): pass"
    definition = parse(python("f", code, type="aggregate"))
    assert isinstance(definition.python, PythonAggregate)


class Session:
    """Records what a handle asks of it."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.queries: list[str] = []

    def on_progress(self, handler: Any) -> None: ...

    def register_function(self, name: str, function: Any, *arguments: Any) -> None:
        self.registered.append(f"{name}: {function.source}")

    def query(self, sql: str, interpreted: bool = False) -> pa.Table:
        self.queries.append(sql)
        return pa.table({"n": [1]})


def test_a_session_gets_a_function_once_and_again_when_it_has_changed(lake: Any) -> None:
    session, node = Session(), python("loud")
    handle = Handle(
        session,  # type: ignore[arg-type]
        one_catalog(lake),
        False,
        lambda _: None,
        lambda: None,
        functions=project(node),
    )
    for sql in ("select 1", "select `s.loud`(1)", "select `s.loud`(2)"):
        handle.cursor().execute(sql)
    assert session.registered == ["s.loud: def main(n): return n"]
    assert session.queries[2] == "select `s.loud`(cast((2) as int))"
    node.compiled_code = "def main(n): return 2"
    handle.cursor().execute("select `s.loud`(1)")
    assert session.registered[1:] == ["s.loud: def main(n): return 2"]
    assert handle.reusable
