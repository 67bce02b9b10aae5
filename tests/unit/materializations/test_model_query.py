"""What the rows of a Python model depend on."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.materializations.model_query import python_query

# The end is what dbt adds.
CODE = """
def model(dbt, session):
    sources = {'a': 1}
    refs = {"base": "s.other"}
    return dbt.ref("base")


# This part is user provided model code
# this part is dbt logic for get ref work, do not modify

def ref(*args, **kwargs):
    refs = {"base": "s.base"}
    key = '.'.join(args)
    return dbt_load_df_function(refs[key])


def source(*args, dbt_load_df_function):
    sources = {"raw.orders": "s.orders"}
    key = '.'.join(args)
    return dbt_load_df_function(sources[key])
"""


def test_own_lines_look_like_those_of_dbt() -> None:
    query = python_query({"compiled_code": CODE, "raw_code": "dbt.ref('base')"})
    assert query.reading == "select 1 from s.base, s.orders"
    assert query.text == CODE
    assert not query.reads_own
