"""The distributions: what a user installs into an empty environment builds the example shop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACROS = "dbt/include/iceberg_stream/macros"


def run(*command: object, **environment: str) -> str:
    """Run a command outside of the checkout, whose packages it must not see."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    inherited = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        env=inherited | environment,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def environment(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and what that asks for."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder)
    (wheel,) = distributions.glob("*.whl")
    constraints = ROOT / "constraints.txt"
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "uv", "pip", "install", "--python", python, "-c", constraints, wheel)
    return folder / "bin"


@pytest.fixture
def shop(environment: Path, tmp_path: Path) -> Iterator[Path]:
    made = shutil.ignore_patterns("lakehouse", "target", "logs", ".iceberg_stream")
    folder = Path(shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop", ignore=made))
    yield folder
    run(environment / "iceberg-stream", "stop", "--project-dir", folder, "--profiles-dir", folder)


def test_both_have_the_same_files(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    (sdist,) = distributions.glob("*.tar.gz")
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "dbt").rglob("*.*") if p.suffix != ".pyc"}
    assert {f"{MACROS}/macros.yml", "dbt/adapters/iceberg_stream/py.typed"} <= files
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("dbt/")} == files
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*files, "README.md", "LICENSE"} <= names


@pytest.mark.slow
def test_the_shop_is_built(environment: Path, shop: Path) -> None:
    dbt = environment / "dbt"
    output = run(
        *(dbt, "build", "--project-dir", shop, "--profiles-dir", shop), SHOP_TODAY="2026-03-31"
    )
    assert "ERROR=0" in output
    shown = run(environment / "python", shop / "show_lakehouse.py")
    assert "customers" in shown
