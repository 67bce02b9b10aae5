import random, sys, logging
from common import *
from datetime import datetime, timezone, timedelta
from dbt.adapters.iceberg_stream.maintenance import orphans as o
from dbt.adapters.iceberg_stream.catalog.errors import *
from dbt.adapters.iceberg_stream.builds.build import discard, list_builds
import time
logging.disable(logging.CRITICAL)
seed0=int(sys.argv[1]); end=time.time()+float(sys.argv[2]); n=0; steps=0
from collections import Counter
done=Counter(); err=Counter()
seed=seed0
while time.time()<end:
    seed+=1; rnd=random.Random(seed); d=fresh()
    lakes=[make_catalog(d/"a"), make_catalog(d/"b")]
    for l in lakes: l._backend.create_namespace("n.m")
    cats=lambda: Catalogs("lake",{"lake":lambda:lakes[0],"other":lambda:lakes[1]})
    k=0; log=[]
    def tables():
        return [(i,nm) for i,l in enumerate(lakes) for nm,kind in l.all_relations() if kind=="table"]
    def newname():
        global k; k+=1; return (rnd.choice(["s","n.m"]), rnd.choice(["t","t2","t22","t/".strip("/")])+("" if rnd.random()<.3 else str(k)))
    def spell(l):
        p="/"+l.removeprefix("file:").removeprefix("FILE:").lstrip("/")
        return rnd.choice(["file://"+p,"file:"+p,p,"file:///"+p,"file://"+p.replace("/data/","//data/./"),"FILE:"+p])
    for step in range(40):
        ts=tables()
        op=rnd.choice("make insert insert replace share share copy copy2 loc datapath drop drop drop orphans clone stage discard prop rollback metap".split()) if ts else "make"
        try:
            if ts: i,nm=rnd.choice(ts); l=lakes[i]
            if op=="make":
                j=rnd.randrange(2); m=newname(); make_table(lakes[j],name=m, properties={"write.metadata.delete-after-commit.enabled":"false"}); desc=(j,m)
            elif op=="insert": commit(l,append(*write(l,ROW,nm),properties={}),name=nm); desc=(i,nm)
            elif op=="replace": commit(l,Change(Operation.OVERWRITE,(AddedFiles(tuple(write(l,ROW,nm))),),removes_all=True),name=nm); desc=(i,nm)
            elif op=="share":
                j,m=rnd.choice(ts); f=[e for e in refs.own_references(load(l,nm)) if e.endswith(".parquet")]
                if not f: continue
                commit(lakes[j],append(data_file(spell(rnd.choice(f))),properties={}),name=m); desc=(i,nm,j,m)
            elif op in("copy","copy2"):
                j=rnd.randrange(2); m=newname(); lakes[j].register(m,load(l,nm).location); desc=(i,nm,j,m)
            elif op=="loc":
                j,m=rnd.choice(ts); base=load(lakes[j],m).metadata["location"]
                move(l,nm,spell(rnd.choice([base, base+"/in", base+"2", f"file://{d}/moved"]))); desc=(i,nm)
            elif op=="datapath": props(l,nm,{"write.data.path":f"file://{d}/"+rnd.choice(["x","x2","x/y"])}); desc=(i,nm)
            elif op=="metap": props(l,nm,{"write.metadata.path":f"file://{d}/"+rnd.choice(["mx","x","mx/y"])}); desc=(i,nm)
            elif op=="prop": setp(l,nm,a=str(step)); desc=(i,nm)
            elif op=="drop": drop_table(l,nm,cats()); desc=(i,nm)
            elif op=="orphans":
                t=load(l,nm); c=cats().all_from(l)
                f=o.find_orphans(t,datetime.now(timezone.utc)+timedelta(seconds=1),c); o.remove_orphans(t,f)
                o.delete_removed(t,datetime.now(timezone.utc)+timedelta(seconds=1),c); desc=(i,nm,len(f))
            elif op=="clone": m=newname(); clone_table(l,nm,m); desc=(i,nm,m)
            elif op=="stage":
                if "__dbt_build" in nm[1] or l.metadata((nm[0],staged_name(nm,"pr")[1])) is not None: continue
                stage_table(l,nm,"pr",{}); desc=(i,nm)
            elif op=="discard":
                bs=list_builds(l)
                if not bs: continue
                discard(l,bs[0],cats()); desc=(i,)
            elif op=="rollback":
                t=load(l,nm); ss=t.metadata.get("snapshots") or []
                if not ss: continue
                from pyiceberg.table.update import SetSnapshotRefUpdate
                l.commit(t,(),(SetSnapshotRefUpdate.model_validate({"ref-name":rnd.choice(["main","b"]),"type":"branch","snapshot-id":rnd.choice(ss)["snapshot-id"]}),)); desc=(i,nm)
            log.append((op,desc)); done[op]+=1
        except Exception as e:
            err[op,type(e).__name__,str(e)[:60]]+=1; log.append((op,"ERR",str(e)[:90])); 
        steps+=1
        if op in("drop","orphans","discard"):
            bad={(i,nm):missing(lakes[i],nm) for i,nm in tables()}
            bad={k_:[x for x in v if not x.endswith(".metadata.json")] for k_,v in bad.items()}
            bad={k_:v for k_,v in bad.items() if v}
            if bad:
                print("SEED",seed,op,desc); [print("  ",x) for x in log]; print(bad); print("----"); break
    import shutil; shutil.rmtree(d,ignore_errors=True); n+=1
print(n,steps,dict(done)); print(err.most_common(15))
