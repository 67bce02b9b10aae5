"""Words of the command line that are wrong."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from dbt.adapters.iceberg_stream.cli.streams import run
from dbt.adapters.iceberg_stream.stream.service import Service, endpoint


def test_a_port_that_is_none() -> None:
    result = CliRunner().invoke(run, ["--port", "99999"])
    assert result.exit_code == 2
    assert "99999 is not in the range 0<=x<=65535" in result.output


def test_a_port_that_somebody_else_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"cannot be served at http://127.0.0.1:{port}: Address already in use. Set another"
        with pytest.raises(OSError, match=said), endpoint(Service(), "127.0.0.1", port):
            pass
