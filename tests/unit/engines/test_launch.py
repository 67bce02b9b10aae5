from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines.launch import (
    ICEBERG_EXTENSIONS,
    LISTENERS,
    MAIN_CLASS,
    STATEMENT_GUARD,
    argument_file,
    server_arguments,
    server_environment,
    spark_settings,
)
from dbt.adapters.iceberg_stream.engines.settings import EngineError, EngineSettings

HOME = Path("/project/.iceberg_stream")
SCRATCH = HOME / "tmp" / "1"
SOCKETS = Path("/sockets")


def arguments(**changes: object) -> list[str]:
    settings = EngineSettings(home=HOME, **changes)  # type: ignore[arg-type]
    return server_arguments(settings, [Path("/a.jar"), Path("/b.jar")], SOCKETS / "server", SCRATCH)


def conf(*pairs: tuple[str, str]) -> dict[str, str]:
    return spark_settings(EngineSettings(home=HOME, spark_conf=pairs), SOCKETS, SCRATCH)


def test_command_line() -> None:
    line = arguments(driver_memory="3g")
    assert line[0] == "-Xmx3g"
    assert line[-4:] == ["-cp", "/a.jar:/b.jar", MAIN_CLASS, "/sockets/server"]
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in line


def test_ports_are_on_loopback_and_ask_for_a_secret_that_no_setting_has() -> None:
    settings = conf(("spark.authenticate", "false"), ("spark.python.unix.domain.socket.dir", "/x"))
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.authenticate"] == "true"
    assert not [name for name in settings if "secret" in name]
    assert settings["spark.python.unix.domain.socket.dir"] == str(SOCKETS)


def test_users_settings_win() -> None:
    assert conf(("spark.ui.enabled", "true"))["spark.ui.enabled"] == "true"
    assert "-Xmx5g" in arguments(spark_conf=(("spark.driver.memory", "5gb"),))


def test_iceberg_stays_among_the_extensions_and_the_guard_is_the_last_one() -> None:
    assert conf()["spark.sql.extensions"] == f"{ICEBERG_EXTENSIONS},{STATEMENT_GUARD}"
    both = conf(("spark.sql.extensions", "org.x.Sedona"))["spark.sql.extensions"]
    assert both == f"{ICEBERG_EXTENSIONS},org.x.Sedona,{STATEMENT_GUARD}"


def test_users_listeners_stay() -> None:
    assert conf()["spark.extraListeners"] == ",".join(LISTENERS)
    both = conf(("spark.extraListeners", "org.x.Listener"))["spark.extraListeners"]
    assert both == ",".join(("org.x.Listener", *LISTENERS))


def test_users_java_options_come_after_ours() -> None:
    line = arguments(spark_conf=(("spark.driver.extraJavaOptions", "-Xss8m -Da='b c'"),))
    assert line.index("-Xss8m") > line.index("-Xss4m")
    assert "-Da=b c" in line


def test_misplaced_settings_are_refused() -> None:
    with pytest.raises(EngineError, match="`packages`"):
        conf(("spark.jars.packages", "a:b:1"))
    with pytest.raises(EngineError, match="`driver_memory` must be a size"):
        arguments(driver_memory="lots")


def test_environment() -> None:
    base = {"PATH": "/bin", "SPARK_HOME": "/s", "SPARK_REMOTE": "sc://x", "HADOOP_CONF_DIR": "/h"}
    base["DBT_ENV_SECRET_TOKEN"] = "hush"
    assert server_environment(base, ambient=True) == {
        "PATH": "/bin",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def test_cloud_credentials_of_the_environment_are_for_those_who_ask() -> None:
    base = {"AWS_SECRET_ACCESS_KEY": "hush", "GOOGLE_APPLICATION_CREDENTIALS": "/key"}
    environment = server_environment(base)
    assert not base.keys() & environment.keys()
    assert environment["AWS_EC2_METADATA_DISABLED"] == "true"
    assert environment["AWS_SHARED_CREDENTIALS_FILE"] == os.devnull
    assert base.items() <= server_environment(base, ambient=True).items()


def test_one_collector() -> None:
    assert "-XX:+UseParallelGC" in arguments()
    line = arguments(spark_conf=(("spark.driver.extraJavaOptions", "-XX:+UseG1GC"),))
    assert [option for option in line if option.endswith("GC")] == ["-XX:+UseG1GC"]


def test_argument_file_quotes() -> None:
    assert argument_file(["-Da=b c", '-Dd="e\\f"']) == '"-Da=b c"\n"-Dd=\\"e\\\\f\\""\n'
