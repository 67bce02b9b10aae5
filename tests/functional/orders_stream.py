"""A stream of orders from files, and changes for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SOURCES = """
sources:
  - name: landing
    schema: "{{ target.schema }}"
    tables:
      - name: orders
        config:
          meta:
            stream:
              type: files
              path: landing/orders
              format: json
              columns: id bigint, status string, amount double, op string, at bigint
"""


ORDERS = """
{{ config(materialized='stream', unique_key='id', apply_as_deletes="op = 'd'",
          **{'except': ['op']}) }}
select * from {{ stream(source('landing', 'orders')) }}
"""


ALL = "select id, status, amount from {schema}.orders order by id"


def land(project: Any, name: str, *changes: tuple[Any, ...], folder: str = "orders") -> None:
    """Put a file of changes into the folder: id, status, amount, op, at."""
    path = Path(project.project_root) / "landing" / folder
    path.mkdir(parents=True, exist_ok=True)
    names = ("id", "status", "amount", "op", "at")
    lines = [json.dumps(dict(zip(names, change, strict=False))) for change in changes]
    (path / f".{name}").write_text("\n".join(lines) + "\n")
    (path / f".{name}").rename(path / f"{name}.json")
