import sys, time
sys.path.insert(0, "/tmp/w/r2/hostile")
from common import *
from dbt.adapters.iceberg_stream.maintenance.steps.expire import plan_expiry
from dbt.adapters.iceberg_stream.maintenance.steps.step import MaintenanceContext, TableState, Skip
from dbt.adapters.iceberg_stream.maintenance.maintain import maintain
from dbt.adapters.iceberg_stream.maintenance.settings import MaintenanceSettings

def run(lake, spark, name):
    ctx = MaintenanceContext(lake, lambda sql: spark.query(sql).to_pylist() if False else spark.run(sql).fetch().to_pylist() if hasattr(spark.run(sql), "fetch") else None, lambda n: None)
    return ctx

def one(lake, spark, name, what):
    make_table(lake, name=name)
    commit(lake, append(*write(lake, ROW, name), properties={}), name=name)
    needing = what(name)
    added=(AddedFiles(tuple(write(lake, ROW, name))),)
    commit(lake, Change(Operation.OVERWRITE, added, removes_all=True), name=name)
    props(lake, name, {"history.expire.max-snapshot-age-ms": "1"})
    time.sleep(.1)
    state = TableState.load(lake, name)
    ctx = MaintenanceContext(lake, lambda sql: call(spark, sql), lambda n: None)
    plan = plan_expiry(ctx, state, MaintenanceSettings())
    print(name, "PLAN", plan.reason if isinstance(plan, Skip) else plan.description)
    if not isinstance(plan, Skip): print(plan.run())
    print(name, "broken:", needing, missing(lake, needing))

def call(spark, sql):
    r = spark.run(sql)
    try: return spark.fetch(r).to_pylist()
    except Exception as e:
        print(type(e), e); return []

def test_it(lake, spark):
    def reg(n):
        o=(n[0], n[1]+"_copy"); lake.register(o, load(lake,n).location); return o
    def stage(n):
        stage_table(lake, n, "pr", {}); return staged_name(n,"pr")
    def added(n):
        o=(n[0], n[1]+"_added"); make_table(lake,name=o)
        f=[e for e in refs.own_references(load(lake,n)) if e.endswith(".parquet")][0]
        commit(lake, append(data_file(f), properties={}), name=o); return o
    def clonecopy(n):
        c=(n[0],n[1]+"_clone"); clone_table(lake,n,c); o=(n[0],n[1]+"_clone2")
        lake.register(o, load(lake,c).location); drop_table(lake,c); return o
    def stagedclone(n):
        c=(n[0],n[1]+"_clone"); clone_table(lake,n,c); stage_table(lake,c,"pr",{}); drop_table(lake,c); return staged_name(c,"pr")
    def clone(n):
        c=(n[0],n[1]+"_clone"); clone_table(lake,n,c); return c
    for i,w in enumerate([reg,stage,added,clonecopy,stagedclone,clone]):
        one(lake, spark, ("s", f"{w.__name__}"), w)
