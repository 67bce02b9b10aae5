"""Reads tables for `test_flink_reader.py`, in Flink's own environment: their rows as JSON."""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment


def main():
    asked = json.loads(sys.argv[1])
    env = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    options = ", ".join(f"'{name}' = '{value}'" for name, value in asked["catalog"].items())
    env.execute_sql(f"create catalog lake with ('type' = 'iceberg', {options})")
    for table, settings in asked["tables"].items():
        for name, value in settings.items():
            env.get_config().set(name, value)
        with env.execute_sql(f"select * from lake.s.`{table}`").collect() as found:
            rows = [list(row) for row in found]
        print(json.dumps({"table": table, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
