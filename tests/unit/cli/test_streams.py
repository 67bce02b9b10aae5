"""Words of the command line that are wrong."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from dbt.adapters.iceberg_stream.cli.streams import run
from dbt.adapters.iceberg_stream.stream.service import Service, endpoint
from dbt.adapters.iceberg_stream.stream.status import StreamStatus

# The package has a command of this name.
MODULE = sys.modules[run.callback.__module__]  # type: ignore[union-attr]


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


@pytest.mark.parametrize("options", [[], ["--full-refresh"]])
def test_an_engine_that_is_lost_before_the_refresh_is_committed(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Once, the streams went on without the refresh."""
    runs: list[list[str]] = []
    refreshes: list[list[bool]] = []

    def dbt(arguments: list[str], service: Service) -> bool:
        runs.append(arguments)
        monkeypatch.setattr(service.stop, "wait", lambda _: None)
        names = ("model.p.a", "model.p.b")
        refreshes.append(
            ["--full-refresh" in arguments and not service.has_rebuilt({name}) for name in names]
        )
        for name in names:
            service.streams[name] = StreamStatus(name)
        if len(runs) == 1:
            service.streams["model.p.b/routed"] = StreamStatus("b", commits=1)
        if len(runs) < 3:
            service.lose_engine()
        return len(runs) == 3

    monkeypatch.setattr(MODULE, "_dbt", dbt)
    monkeypatch.setattr(MODULE, "_listed", lambda _: {"model.p.a": [], "model.p.b": []})
    monkeypatch.setattr(MODULE, "signal", SimpleNamespace(SIGTERM=0, SIGINT=0, signal=ignore))
    result = CliRunner().invoke(run, ["--no-page", "--port", "0", *options])
    assert result.exit_code == 0, result.output
    wanted = bool(options)
    assert refreshes == [[wanted, wanted], [wanted, False], [wanted, False]]


def ignore(*_: Any) -> None:
    """Set no handler of signals."""
