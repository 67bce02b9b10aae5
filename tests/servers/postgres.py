"""A Postgres server of Debian's package, whose log has what logical replication needs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port, wait_for

PROGRAMS = Path("/usr/lib/postgresql")
USER, PASSWORD = "postgres", "a secret"
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "fsync": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


def programs() -> Path | None:
    """The folder of the newest version's programs; None if there are none."""
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextlib.contextmanager
def postgres_server() -> Iterator[dict[str, Any]]:
    """Run a server; returns the options of connections to it."""
    folder = programs()
    assert folder is not None, "install Debian's package `postgresql`"
    # A folder that also another user may enter: Postgres does not run as root.
    home = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    port = free_port()
    options = {"host": "127.0.0.1", "port": port, "dbname": "postgres", "user": USER}
    options["password"] = PASSWORD
    secret = home / "password"
    secret.write_text(PASSWORD)
    if os.getuid() == 0:
        for path in (home, secret):
            shutil.chown(path, USER)
    try:
        data = str(home / "data")
        _run(folder / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", secret)
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = _as_user(folder / "postgres", "-D", data, "-p", str(port), *settings)
        log = home / "postgres.log"
        with open(log, "wb") as output, subprocess.Popen(command, stderr=output) as server:
            try:
                wait_for(port, server, log)
                yield options
            finally:
                _run(folder / "pg_ctl", "-D", data, "stop", "-m", "immediate")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _as_user(*command: Any) -> Sequence[str]:
    prefix = ("runuser", "-u", USER, "--") if os.getuid() == 0 else ()
    return [*prefix, *map(str, command)]


def _run(*command: Any) -> None:
    subprocess.run(_as_user(*command), check=True, capture_output=True, cwd="/")
