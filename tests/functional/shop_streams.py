"""Streams of a shop, two tables from one source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SOURCES = """
sources:
  - name: landing
    schema: "{{ target.schema }}"
    tables:
      - name: shop
        config:
          meta:
            stream:
              type: files
              path: landing/shop
              columns: tbl string, id bigint, order_id bigint, value string, deleted boolean
      - name: other
        config: {meta: {stream: {type: files, path: landing/other, columns: 'tbl string, id bigint'}}}
"""


CONFIG = "materialized='stream', commit_group='shop', unique_key='id', apply_as_deletes='deleted'"


ORDERS = """
{{ config(%s, **{'except': ['deleted']}) }}
select id, value, deleted from {{ stream(source('landing', 'shop')) }} where tbl = 'orders'
"""


ITEMS = """
{{ config(%s, **{'except': ['deleted']}) }}
select id, order_id, deleted from {{ stream(source('landing', 'shop')) }} where tbl = 'items'
"""


ALL_ORDERS = "select id, value from {schema}.orders order by id"


ALL_ITEMS = "select id, order_id from {schema}.items order by id"


MODELS = {"sources.yml": SOURCES, "orders.sql": ORDERS % CONFIG, "items.sql": ITEMS % CONFIG}


FRONTIER, WRITE_ID = "iceberg-stream.frontier", "iceberg-stream.write-id"


def land(project: Any, name: str, *changes: dict[str, Any]) -> None:
    path = Path(project.project_root) / "landing" / "shop"
    path.mkdir(parents=True, exist_ok=True)
    (path / f".{name}").write_text("".join(json.dumps(change) + "\n" for change in changes))
    (path / f".{name}").rename(path / f"{name}.json")


def item(id: int, order_id: int) -> dict[str, Any]:
    return {"tbl": "items", "id": id, "order_id": order_id, "deleted": False}
