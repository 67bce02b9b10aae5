"""What the config of a model is checked for before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from dbt_common.exceptions import CompilationError

from dbt.adapters.iceberg_stream.materializations.model_config import check_model_config


def check(**config: Any) -> None:
    check_model_config({"unique_id": "model.shop.orders", "config": config})


@pytest.mark.parametrize("maintenance", [None, True, False, "compact", ["expire_snapshots"]])
def test_maintenance(maintenance: Any) -> None:
    check(materialized="incremental", maintenance=maintenance)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"maintenance": ["compat"]}, "`maintenance`: `steps` must be one of convert_deletes,"),
        ({"maintenance": {"sorted": "id"}}, "`maintenance`: unknown key `sorted`"),
        ({"maintenance": "remove_orphans"}, "remove_orphans never runs by itself"),
        ({"maintainance": True}, "did you mean `maintenance`?"),
        (
            {"maintenance": True, "materialized": "stream"},
            "`maintenance` cannot be used with `stream` models",
        ),
        (
            {"maintenance": True, "incremental_strategy": "microbatch"},
            "`maintenance` cannot be used with `incremental_strategy: microbatch`",
        ),
    ],
)
def test_wrong_maintenance(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CompilationError, match="The config of model.shop.orders has") as raised:
        check(**config)
    assert message in str(raised.value)
