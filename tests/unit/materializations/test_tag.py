"""The config `tag_on_success`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config
from dbt.adapters.iceberg_stream.materializations.tag import parse_tag
from dbt.adapters.iceberg_stream.tables.commit.tags import Tag


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        (None, None),
        ("release-1", Tag("release-1")),
        ({"name": "r", "retention": "90 days"}, Tag("r", timedelta(days=90))),
        ({"name": "r", "retention": "1 week", "replace": True}, Tag("r", timedelta(7), True)),
    ],
)
def test_tags(value: Any, tag: Tag | None) -> None:
    assert parse_tag({"tag_on_success": value, "materialized": "view"}) == (tag, [])


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"tag_on_success": ""}, "must be the name of a tag, or a mapping with `name`; got ''"),
        ({"tag_on_success": 5}, "must be the name of a tag"),
        ({"tag_on_success": {"retention": "1 day"}}, "must be the name of a tag"),
        ({"tag_on_success": {"name": "r", "keep": 1}}, "unknown key `keep`: the keys are name, r"),
        ({"tag_on_success": {"name": "r", "retention": 90}}, "hours, days or weeks: 90 days; got 90"),
        ({"tag_on_success": {"name": "r", "retention": "0 days"}}, "hours, days or weeks"),
        ({"tag_on_success": {"name": "r", "replace": "yes"}}, "replace` must be true or false"),
        ({"tag_on_success": "r", "materialized": "stream"}, "cannot be used with `stream` models"),
        ({"tag_on_success": "r", "incremental_strategy": "microbatch"}, "cannot be used with `incr"),
    ],
)  # fmt: skip
def test_errors(config: dict[str, Any], error: str) -> None:
    with pytest.raises(CompilationError) as raised:
        check_model_config({"unique_id": "model.shop.orders", "config": config})
    assert error in str(raised.value)
    assert "The config of model.shop.orders has errors" in str(raised.value)
