"""Runs jobs for `flink.py`, in Flink's own environment: a line of JSON in, one out."""

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

COLUMNS = "id bigint, customer bigint, status string, amount double, `at` bigint"
SETTINGS = {
    "execution.checkpointing.interval": "1 s",
    "parallelism.default": "2",
}


def main() -> None:
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in SETTINGS.items():
        env.get_config().set(name, value)
    env.execute_sql(
        "create catalog lake with ('type' = 'iceberg', 'catalog-type' = 'hadoop', "
        f"'warehouse' = 'file://{sys.argv[1]}')"
    )
    env.execute_sql("create database lake.s")
    answer({"started": True})
    for line in sys.stdin:
        answer({"seconds": run(env, **json.loads(line))})


def run(env: TableEnvironment, table: str, source: dict[str, str]) -> float:
    """Seconds from the submission of a job to its end, all that it read being committed."""
    options = ", ".join(f"'{name}' = '{value}'" for name, value in source.items())
    env.execute_sql("drop temporary table if exists changes")
    env.execute_sql(f"create temporary table changes ({COLUMNS}) with ({options})")
    env.execute_sql(
        f"create table lake.s.{table} ({COLUMNS}, primary key (id) not enforced) "
        "with ('format-version' = '2', 'write.upsert.enabled' = 'true')"
    )
    begin = time.perf_counter()
    env.execute_sql(f"insert into lake.s.{table} select * from changes").wait()
    return time.perf_counter() - begin


def answer(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
