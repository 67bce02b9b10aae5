"""Runs statements and reads tables for `run_flink`, in Flink's own environment: rows as JSON."""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment


def main():
    asked = json.loads(sys.argv[1])
    env = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    options = ", ".join(f"'{name}' = '{value}'" for name, value in asked["catalog"].items())
    env.execute_sql(f"create catalog lake with ('type' = 'iceberg', {options})")
    for statement in asked["statements"]:
        env.execute_sql(statement).wait()
    for table, settings in asked["tables"].items():
        for name, value in settings.items():
            env.get_config().set(name, value)
        with env.execute_sql(f"select * from lake.s.`{table}`").collect() as actual:
            rows = [list(row) for row in actual]
        print(json.dumps({"table": table, "rows": rows}, default=str), flush=True)


if __name__ == "__main__":
    main()
