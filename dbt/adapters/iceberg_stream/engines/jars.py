"""The user's cache of jars of Maven packages and of AppCDS archives."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from dbt.adapters.iceberg_stream.engines.java import Java
from dbt.adapters.iceberg_stream.engines.private_files import require_trusted
from dbt.adapters.iceberg_stream.engines.settings import EngineError
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets

logger = logging.getLogger(__name__)

MAVEN_CENTRAL = "https://repo1.maven.org/maven2/"
FETCH_TIMEOUT = 900.0
COORDINATE = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+")

# The statements of a typical dbt run, whose classes go into an AppCDS archive.
TRAINING = """
import sys, uuid
from pathlib import Path
import pyarrow
from dbt.adapters.iceberg_stream.engines.client import open_session
from dbt.adapters.iceberg_stream.engines.settings import Endpoint
socket, folder = sys.argv[1:]
spark = open_session(Endpoint(socket=Path(socket)), str(uuid.uuid4()), {})
catalog = "spark.sql.catalog.t"
spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set(f"{catalog}.type", "jdbc")
spark.conf.set(f"{catalog}.uri", f"jdbc:sqlite:{folder}/training.db")
spark.conf.set(f"{catalog}.jdbc.schema-version", "V1")
spark.conf.set(f"{catalog}.warehouse", f"file://{folder}/training")
rows = pyarrow.table({"id": [1, 2, 3], "name": ["a", "b", None]})
spark.createDataFrame(rows).createOrReplaceTempView("seed")
for sql in '''create namespace t.n
create table t.n.a using iceberg as select *, current_timestamp() as at, 1.5BD as d from seed
create or replace table t.n.a using iceberg as select *, now() as at, 2.5BD as d from seed
insert into t.n.a select id + 10, name, at, d from t.n.a
merge into t.n.a o using (select * from t.n.a where id < 9) n on o.id = n.id
when matched then update set * when not matched then insert *
delete from t.n.a where id = 2
create view t.n.v as select name, count(*) c, sum(d) d, max(at) m from t.n.a group by name
select * from t.n.v order by c
select l.id, row_number() over (order by l.at) r from t.n.a l left join seed s on l.id = s.id
show tables in t.n
describe table extended t.n.a
select * from t.n.a.snapshots
select count(*) as failures from (select id from t.n.a where name is null)
drop table t.n.a'''.replace("\\nwhen", " when").split("\\n"):
    spark.sql(sql).toArrow()
spark.stop()
"""


def cache_root() -> Path:
    """Return the folder of the user's cache, which can be copied to other machines."""
    import platformdirs

    override = os.environ.get("DBT_ICEBERG_STREAM_CACHE")
    return Path(override) if override else Path(platformdirs.user_cache_dir("dbt-iceberg-stream"))


def spark_jars() -> list[Path]:
    """Return the jars of the installed pyspark, without importing it (which takes a second).

    Raises:
        EngineError: pyspark is not installed, or has no jars.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError("pyspark is not installed: pip install 'pyspark[connect]>=4.1.1,<4.2'.")
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise EngineError(
            f"{folder} has no jars: the local engine needs `pyspark`, but only `pyspark-client` is "
            "installed. Install `pyspark`, or use `method: connect` with an existing server."
        )
    return jars


def own_jar() -> Path:
    """Return the jar of this package: its server, and what checks the statements of callers."""
    return Path(__file__).with_name("jvm") / "iceberg-stream-engine.jar"


def resolve_packages(packages: tuple[str, ...], java: Java, repository: str | None) -> list[Path]:
    """Return the jars of Maven packages and their dependencies, except those of Spark.

    Args:
        packages: Maven coordinates, group:artifact:version.
        java: runs Apache Ivy.
        repository: mirror of Maven Central; None for Maven Central itself.

    Raises:
        EngineError: a coordinate is invalid, or a package cannot be downloaded.
    """
    for package in packages:
        if not COORDINATE.fullmatch(package):
            raise EngineError(
                f"`{package}` is not a Maven coordinate: write group:artifact:version."
            )
    if not packages:
        return []
    bundled = spark_jars()
    content = "\n".join([*sorted(packages), *(jar.name for jar in bundled)])
    folder = cache_root() / "jars" / hashlib.sha256(content.encode()).hexdigest()[:16]
    if not folder.is_dir():
        _fetch_locked(packages, java, repository or MAVEN_CENTRAL, bundled, folder)
    jars = sorted(folder.glob("*.jar"))
    _require_trusted(folder, *jars)
    return jars


def _require_trusted(*paths: Path) -> None:
    """Require that no other user can have put code into the cache."""
    try:
        for path in paths:
            require_trusted(path)
    except PermissionError as error:
        raise EngineError(
            f"The cache of Spark's jars cannot be trusted: {error}. Remove it, or set "
            "DBT_ICEBERG_STREAM_CACHE to a folder of your own."
        ) from error


def _fetch_locked(
    packages: tuple[str, ...], java: Java, repository: str, bundled: list[Path], folder: Path
) -> None:
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A rename creates the complete folder, so it can be read without the lock.
        with (
            FileLock(folder.with_suffix(".lock")),
            tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch,
        ):
            if not folder.is_dir():
                _run_ivy(packages, java, repository, bundled, Path(scratch))
                os.replace(Path(scratch) / "jars", folder)
    except OSError as error:
        raise EngineError(
            f"The cache for Spark's jars is not writable: {error}. "
            "Free some space, or set DBT_ICEBERG_STREAM_CACHE to a writable folder."
        ) from error


def _run_ivy(
    packages: tuple[str, ...], java: Java, repository: str, bundled: list[Path], scratch: Path
) -> None:
    logger.info("Fetching %s from %s", ", ".join(packages), without_secrets(repository))
    (scratch / "settings.xml").write_text(_ivy_settings(repository))
    (scratch / "ivy.xml").write_text(_ivy_module(packages, bundled))
    ivy = next((jar for jar in bundled if jar.name.startswith("ivy-")), None)
    if ivy is None:
        raise EngineError("This pyspark has no Apache Ivy: install pyspark>=4.1.1,<4.2.")
    command = [str(java.executable), "-XX:TieredStopAtLevel=1", *_proxy_options()]
    command += ["-cp", str(ivy), "org.apache.ivy.Main", "-warn"]
    command += ["-settings", str(scratch / "settings.xml"), "-ivy", str(scratch / "ivy.xml")]
    command += ["-cache", str(scratch / "ivy"), "-types", "jar", "bundle", "-retrieve"]
    command += [str(scratch / "jars" / "[organisation]_[artifact]-[revision](-[classifier]).[ext]")]
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise _unfetched(packages, repository, f"time-out after {FETCH_TIMEOUT:.0f} s") from None
    fetched = {jar.name for jar in (scratch / "jars").glob("*.jar")}
    missing = [package for package in packages if _file_name(package) not in fetched]
    if result.returncode or missing:
        raise _unfetched(missing or packages, repository, _reason(result.stdout))


def _file_name(package: str) -> str:
    group, artifact, version = package.split(":")
    return f"{group}_{artifact}-{version}.jar"


def _unfetched(packages: list[str] | tuple[str, ...], repository: str, why: str) -> EngineError:
    return EngineError(
        f"Could not fetch {', '.join(packages)} from {without_secrets(repository)}: {why}.\n"
        "Check the coordinates and the network. Behind a firewall, set `maven_repository` in the "
        "profile to your company's mirror, or copy the folder "
        f"{cache_root() / 'jars'} from a machine that has the jars."
    )


def _reason(output: str) -> str:
    """Return the line of Ivy's output that has the error."""
    if "No space left on device" in output:
        return f"no space left on the disk of {cache_root()}"
    unreachable = re.search(r"Host (\S+) not found|(\S*UnknownHost\S*.*)", output)
    if unreachable:
        return f"the host cannot be reached ({unreachable[0].strip()})"
    refused = re.search(r"(?:Server access error|Connection refused|timed out|PKIX).*", output)
    if refused:
        return refused[0].strip()
    if re.search(r": not found\b", output):
        return "the repository does not have it"
    lines = [line.strip() for line in output.splitlines() if line.strip(": \t")]
    return lines[-1] if lines else "no output of Ivy"


def _ivy_settings(repository: str) -> str:
    return f"""<ivysettings>
  <settings defaultResolver="maven"/>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" root={quoteattr(repository.rstrip("/") + "/")}/>
  </resolvers>
</ivysettings>
"""


def _ivy_module(packages: tuple[str, ...], bundled: list[Path]) -> str:
    """Return an Ivy module that depends on the packages, without a second copy of Spark's jars.

    The packages have the given versions, even if other packages depend on other versions.
    """
    coordinates = [package.split(":") for package in packages]
    requested = {artifact for _, artifact, _ in coordinates}
    shipped = {re.sub(r"-\d[\w.+-]*$", "", jar.stem) for jar in bundled} - requested
    dependencies = [
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
        'conf="default->default"/>'
        for group, artifact, version in coordinates
    ]
    excludes = [f"<exclude module={quoteattr(name)}/>" for name in sorted(shipped)]
    overrides = [
        f"<override org={quoteattr(group)} module={quoteattr(name)} rev={quoteattr(version)}/>"
        for group, name, version in coordinates
    ]
    return (
        '<ivy-module version="2.0"><info organisation="dbt" module="engine"/>'
        '<configurations><conf name="default"/></configurations><dependencies>\n'
        + "\n".join(dependencies + excludes + overrides)
        + "\n</dependencies></ivy-module>\n"
    )


def _proxy_options() -> list[str]:
    """Return Java options for Python's proxies, because Java does not read `https_proxy`."""
    options = []
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    return options


@dataclass(frozen=True)
class Archive:
    """An AppCDS archive: memory-mapped JVM classes, which halve the start time.

    It extends the base archive that Java ships; for a slim Java without one, `base` is created.

    Attributes:
        path: of the archive.
        base: of the base archive; None if Java ships one.
    """

    path: Path
    base: Path | None

    def use_options(self) -> list[str]:
        """Return the JVM options that use the archive."""
        return [f"-XX:SharedArchiveFile={self.path}"]

    def create_options(self, draft: Path) -> list[str]:
        """Return the JVM options that create the archive.

        Args:
            draft: where to create it.
        """
        base_options = [f"-XX:SharedArchiveFile={self.base}"] if self.base else []
        return [*base_options, f"-XX:ArchiveClassesAtExit={draft}"]


def class_archive(java: Java, class_path: list[Path]) -> Archive:
    """Return the archive of a Java and class path, whose name depends on their versions.

    Args:
        java: the Java.
        class_path: the jars.
    """
    facts = [java.version, str(java.executable.resolve())]
    for jar in class_path:
        stat = jar.stat()
        facts.append(f"{jar}:{stat.st_size}:{stat.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    path = cache_root() / "cds" / f"{digest[:16]}.jsa"
    if path.exists():
        _require_trusted(path.parent, path)
    return Archive(path, base=None if java.has_archive else path.with_suffix(".base"))
