"""Records of sessions: who may clean up what."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.engines import abandoned_statements
from dbt.adapters.iceberg_stream.engines.abandoned_statements import SessionRecord, end_orphans
from dbt.adapters.iceberg_stream.engines.settings import Endpoint
from dbt.adapters.iceberg_stream.errors.spark import StatementError

HERE, THERE = Endpoint("localhost", 1), Endpoint("spark", 2)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions that a server was told to end; it had a statement in each."""
    actual: list[str] = []

    def interrupt(url: str, session_id: str) -> int:
        if session_id == "unreachable":
            raise StatementError("no answer", engine_gone=True)
        actual.append(session_id)
        return 1

    monkeypatch.setattr(abandoned_statements, "interrupt_session", interrupt)
    return actual


def killed(folder: Path, endpoint: Endpoint, session_id: str) -> None:
    """Leave what a killed process leaves."""
    record = SessionRecord(folder)
    record.add(endpoint, session_id)
    record.lost_server()
    record.close()


def test_a_living_process_keeps_its_sessions(tmp_path: Path, ended: list[str]) -> None:
    record = SessionRecord(tmp_path)
    record.add(HERE, "mine")
    assert end_orphans(tmp_path, HERE) == 0
    record.close()
    assert list(tmp_path.iterdir()) == []


def test_each_server_ends_its_own(tmp_path: Path, ended: list[str]) -> None:
    killed(tmp_path, THERE, "there")
    assert end_orphans(tmp_path, HERE) == 0
    assert end_orphans(tmp_path, THERE) == 1
    assert ended == ["there"]
    assert list(tmp_path.glob("*.sessions")) == []


def test_a_server_that_is_away_is_asked_again(tmp_path: Path, ended: list[str]) -> None:
    killed(tmp_path, HERE, "unreachable")
    assert end_orphans(tmp_path, HERE) == 0
    assert len(list(tmp_path.glob("*.sessions"))) == 1
