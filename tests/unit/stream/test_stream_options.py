from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.stream.options import OPTIONS, parse_stream_options
from dbt.adapters.iceberg_stream.stream.routes import has_shared_keys

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("streams.md", "stream_groups.md")


def route_options(**config: Any) -> Any:
    return parse_stream_options({"unique_id": "model.shop.orders", "config": config})


def test_names_as_databricks_has_them() -> None:
    options = route_options(
        unique_key="id",
        sequence_by="`at`",
        except_column_list=["op"],
        ignore_null_updates=True,
        commit_interval="0.5",
    )
    assert options.sink_id == "model.shop.orders"
    assert (options.keys, options.sequence_by, options.excluded) == (("id",), ("at",), ("op",))
    assert options.ignore_null_updates is True
    assert options.commit_interval == 0.5


def test_all_faults_at_once() -> None:
    with pytest.raises(CompilationError) as raised:
        route_options(
            sequence_by="at",
            stored_as_scd_type=3,
            columns=["a"],
            on_bad_record="drop",
            batch_rows=0,
            commit_interval="soon",
            **{"except": ["b"]},
        )
    message = str(raised.value)
    for error in (
        "model.shop.orders",
        "`stored_as_scd_type` must be one of 1, 2; got 3",
        "`on_bad_record` must be one of stop, dead_letters; got 'drop'",
        "`sequence_by` needs a `unique_key`",
        "`columns` and `except` exclude each other",
        "`batch_rows` must be a number of at least 1; got 0",
        "`commit_interval` must be a number of at least 0; got 'soon'",
    ):
        assert error in message


def documented() -> dict[str, str]:
    """The defaults of options, as the pages on streams have them."""
    rows = [row.split(" | ") for page in PAGES for row in (DOCS / page).read_text().splitlines()]
    named = [row for row in rows if len(row) > 1 and row[0].startswith("| `")]
    return {
        name: row[1]
        for row in named
        for name in re.findall(r"`(\w+)`", row[0].removesuffix(")"))
        if name in OPTIONS
    }


def test_every_option_is_documented_with_its_default() -> None:
    options, defaults = route_options(), documented()
    assert defaults.keys() == OPTIONS.keys()
    for name, option in OPTIONS.items():
        default = getattr(options, option.field)
        if isinstance(default, int | float) and not isinstance(default, bool) and default != 1:
            assert float(defaults[name].replace(",", "")) == default
        elif default in ("auto", "stop", "warn"):
            assert defaults[name] == f"`{default}`", name


def test_options_that_are_gone() -> None:
    with pytest.raises(CompilationError, match="`max_keys` is no option any more: remove it"):
        route_options(max_keys=5)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (
            {"apply_as_deletes": True},
            "`apply_as_deletes` must be a condition on the query's columns, as text; got True",
        ),
        ({"soft_deletes": True}, "`soft_deletes` must be the name of a column; got True"),
        ({"commit_group": ["g"]}, "`commit_group` must be a name; got ['g']"),
        (
            {"columns": {"id": 1}},
            "`columns` must be the name of a column, or a list of them; got {'id': 1}",
        ),
        (
            {"sequence_by": [1]},
            "`sequence_by` must be the name of a column, or a list of them; got [1]",
        ),
        ({"create_tables": "false"}, "`create_tables` must be true or false; got 'false'"),
        ({"apply_as_delete": "x"}, "`apply_as_delete`: did you mean `apply_as_deletes`?"),
        ({"comit_interval": 5}, "`comit_interval`: did you mean `commit_interval`?"),
        (
            {"deleted_keys_days": float("nan")},
            "`deleted_keys_days` must be a number of at least 0; got nan",
        ),
        ({"batch_rows": float("inf")}, "`batch_rows` must be a number of at least 1; got inf"),
    ],
)
def test_values_and_names_that_are_wrong(config: dict[str, Any], fault: str) -> None:
    with pytest.raises(CompilationError) as raised:
        route_options(unique_key="id", **config)
    assert fault in str(raised.value)


def test_the_kind_of_table_as_text() -> None:
    assert route_options(unique_key="id", sequence_by="at", stored_as_scd_type="2").scd_type == 2


def test_versions_need_one_column_that_orders_them() -> None:
    with pytest.raises(CompilationError, match="needs a `sequence_by`"):
        route_options(unique_key="id", stored_as_scd_type=2)
    with pytest.raises(CompilationError, match="takes one column"):
        route_options(unique_key="id", stored_as_scd_type=2, sequence_by=["a", "b"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, True),
        ({"compaction_share": 0}, False),
        ({"delete_encoding": "equality"}, False),
        ({"delete_encoding": "equality", "compaction_share": 0.1}, True),
        ({"delete_encoding": "position"}, False),
        ({"delete_encoding": "position", "compaction_share": 0.1}, True),
        ({"delete_encoding": "copy_on_write", "compaction_share": 0.1}, False),
        ({"sequence_by": "at"}, True),
        ({"unique_key": None, "compaction_share": 0.1}, False),
    ],
)
def test_which_streams_convert_equality_deletes(config: dict[str, Any], expected: bool) -> None:
    assert route_options(**{"unique_key": "id", **config}).converts_deletes is expected


@pytest.mark.parametrize(
    ("config", "of_rows", "table_column", "expected"),
    [
        ({}, False, False, False),
        ({}, True, False, True),
        ({}, True, True, False),
        ({"unique_key": None}, True, False, False),
        ({"ignore_null_updates": True}, True, False, False),
        ({"routes": {"a": {"unique_key": "a_id"}}}, True, False, False),
        ({"route_keys": "separate"}, True, False, False),
        ({"route_keys": "shared"}, False, True, True),
    ],
)
def test_whether_routes_share_their_keys(
    config: dict[str, Any], of_rows: bool, table_column: bool, expected: bool
) -> None:
    options = route_options(**{"unique_key": "id", "route_by": "kind", **config})
    assert has_shared_keys(options, of_rows, table_column) == expected


def test_routes_that_cannot_share_their_keys() -> None:
    shared = {"route_by": "kind", "route_keys": "shared"}
    for config in ({}, {"unique_key": "id", "ignore_null_updates": True}):
        with pytest.raises(CompilationError, match="`route_keys: shared` needs a `unique_key`"):
            route_options(**shared, **config)
    with pytest.raises(CompilationError, match="the route `a` has a `unique_key`"):
        route_options(**shared, unique_key="id", routes={"a": {"unique_key": "a_id"}})
