"""dbt as a scheduler runs it: real processes, no terminal, all of the profile from variables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DBT = Path(sys.executable).with_name("dbt")
SECONDS = 120

PROFILES = """
shared: &shared
  type: iceberg_stream
  threads: "{{ env_var('JOB_THREADS') | as_number }}"
  engine_home: "{{ env_var('JOB_ENGINE') }}"
  keep_alive: "{{ env_var('JOB_KEEP_ALIVE') | as_number }}"
  catalog_properties:
    uri: "{{ env_var('JOB_CATALOG') }}"
    header.X-Proxy-Authorization: "{{ env_var('DBT_ENV_SECRET_PROXY') }}"
  spark_conf:
    spark.ui.enabled: "true"
    spark.ui.port: "{{ env_var('JOB_UI_PORT') }}"
    spark.eventLog.enabled: "true"
    spark.eventLog.dir: "{{ env_var('JOB_EVENTS') }}"
    spark.eventLog.compress: "false"
job:
  target: "{{ env_var('JOB_TARGET') }}"
  outputs:
    prod:
      <<: *shared
      schema: "{{ env_var('JOB_SCHEMA') }}"
      token: "{{ env_var('DBT_ENV_SECRET_TOKEN') }}"
    dev:
      <<: *shared
      schema: "{{ env_var('JOB_DEV_SCHEMA') }}"
      token_command: "{{ env_var('JOB_TOKEN_COMMAND') }}"
    service:
      <<: *shared
      schema: "{{ env_var('JOB_SCHEMA') }}"
      oauth2:
        token_uri: "{{ env_var('JOB_TOKEN_URI') }}"
        client_id: "{{ env_var('JOB_CLIENT') }}"
        client_secret: "{{ env_var('DBT_ENV_SECRET_CLIENT') }}"
"""
BROKEN, MENDED = "select no_such_column from {{ ref('members') }}", "select 1 as id"
PROJECT = {
    "dbt_project.yml": """
name: job
version: '1.0'
profile: job
on-run-start: "{{ log(target, info=True) }}"
""",
    "packages.yml": "packages: [{local: helpers}]",
    "helpers/dbt_project.yml": "{name: helpers, version: '1.0'}",
    "helpers/macros/shout.sql": "{% macro shout(text) %}upper({{ text }}){% endmacro %}",
    "seeds/people.csv": "id,name,joined\n1,Ada,2020-01-01\n2,Grace,2020-01-02\n",
    "models/members.sql": """
{{ config(materialized='table') }}
select id, {{ helpers.shout('name') }} as name, cast(id * 1.5 as decimal(10, 2)) as points, joined
from {{ ref('people') }}
""",
    "models/merged.sql": """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id') }}
select id, name from {{ ref('members') }}
""",
    "models/looked_at.sql": """
{{ config(materialized='view') }} select name, points from {{ ref('members') }}
""",
    "models/fragile.sql": MENDED,
    "models/after_fragile.sql": "select * from {{ ref('fragile') }}",
    "models/explodes.py": """
def model(dbt, session):
    dbt.config(tags=["broken"])
    members = dbt.ref("members")
    if members.count():
        raise ValueError("there are members")
    return members
""",
    "models/schema.yml": """
models:
  - name: members
    description: Who has joined.
    columns:
      - {name: id, data_tests: [unique, not_null]}
sources:
  - name: raw
    schema: "{{ target.schema }}"
    config:
      freshness: {error_after: {count: 1, period: day}}
    tables:
      - name: people
      - name: joined
        identifier: people
        config: {loaded_at_field: cast(joined as timestamp)}
""",
    "tests/nobody_left.sql": """
{{ config(tags=["broken"]) }} select * from {{ ref('merged') }}
""",
}


@dataclass(frozen=True)
class Done:
    """A job that has ended."""

    code: int
    output: str
    target: Path

    def artifact(self, name: str) -> Any:
        return json.loads((self.target / f"{name}.json").read_text())

    def statuses(self) -> dict[str, str]:
        """The nodes of run_results.json, without the project's name."""
        results = self.artifact("run_results")["results"]
        return {r["unique_id"].split(".")[2]: r["status"] for r in results}


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    log: Path
    target: Path

    def wait(self) -> Done:
        try:
            code = self.process.wait(SECONDS)
        finally:
            self.process.kill()
        return Done(code, self.log.read_text(), self.target)


@dataclass(frozen=True)
class Jobs:
    """A project in a folder, where also all that its jobs write is."""

    folder: Path
    variables: dict[str, str]

    def write_project(self) -> None:
        for name, text in PROJECT.items():
            file = self.folder / "project" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (self.folder / "profiles").mkdir()
        (self.folder / "profiles" / "profiles.yml").write_text(PROFILES)

    def start(self, *arguments: str, job: str = "main", **changes: str | None) -> Running:
        """Start dbt with other variables; a None takes one away."""
        place = self.folder / job
        target, parsed = place / "target", self.folder / "main/target/partial_parse.msgpack"
        if parsed.exists() and not target.exists():
            # As CI keeps it from job to job: a third of the time of a small one.
            target.mkdir(parents=True)
            shutil.copy(parsed, target)
        place.mkdir(exist_ok=True)
        variables = self.variables | {
            "DBT_PROFILES_DIR": str(self.folder / "profiles"),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            "DBT_TARGET_PATH": str(target),
            "DBT_LOG_PATH": str(place / "logs"),
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DBT_ENV")}
        given = (inherited | variables | changes).items()
        log = place / f"output{len(list(place.glob('output*')))}.txt"
        with open(log, "w") as output:
            process = subprocess.Popen(
                [str(DBT), *arguments],
                cwd=self.folder / "project",
                env={key: value for key, value in given if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # no terminal
            )
        return Running(process, log, target)

    def run(self, *arguments: str, job: str = "main", **changes: str | None) -> Done:
        return self.start(*arguments, job=job, **changes).wait()
