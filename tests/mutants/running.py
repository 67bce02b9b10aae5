"""Tests against mutants: each in a process of its own, with the mutant in memory.

Nothing is written to the source: an import hook gives the mutated module's source, so whatever is
killed leaves no mutant behind.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.mutants.mutations import PACKAGE, ROOT, Module, Mutant

TESTS = [f"tests/unit/{name}" for name in ("tables", "stream/row_deltas")]
# Other people's modules, which all processes share; ours are imported in each.
PRELOADED = (
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet"),
    *("pytest", "hypothesis", "coverage", "pyroaring", "tenacity", "pyspark.cloudpickle"),
    *("pyspark.sql", "pyspark.sql.connect.session", "sqlglot", "sqlalchemy"),
    *("pyiceberg.avro.file", "pyiceberg.catalog.rest", "pyiceberg.catalog.sql"),
    *("pyiceberg.io.pyarrow", "pyiceberg.manifest", "dbt.adapters.sql", "dbt.adapters.base"),
)
NOT_FOUND = 4  # pytest's exit code for a test that is not there
SHORTEST, SLOWER = 20.0, 5.0


@dataclass(frozen=True)
class Coverage:
    """Which tests run which lines of a module, and how long a test takes."""

    tests: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def of(self, module: Module, line: int) -> list[str]:
        """Tests of a line, the fast ones first.

        Where it runs at import, all tests of the files in which some run the module: a test may
        compare what the module defines, and run none of its lines.
        """
        lines = self.tests.get(module.path, {})
        tests = {test for n in module.statement(line) for test in lines.get(n, ())}
        if tests == {""}:
            files = {test.split("::")[0] for tests in lines.values() for test in tests}
            tests = {test for test in self.seconds if test.split("::")[0] in files}
        return sorted(tests - {""}, key=lambda test: self.seconds.get(test, 0))


def preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)


def measure() -> Coverage:
    """Run all tests once, unchanged.

    Raises:
        RuntimeError: they fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "coverage.json"
        process = _fork(lambda: _measure(out), Path(folder) / "log")
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
            raise RuntimeError((Path(folder) / "log").read_text())
        measured = json.loads(out.read_text())
    tests = {
        path: {int(line): names for line, names in lines.items()}
        for path, lines in measured["tests"].items()
    }
    return Coverage(tests, measured["seconds"])


def run(
    work: Iterable[tuple[Mutant, Sequence[str]]], coverage: Coverage, jobs: int
) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant and whether a test notices it."""
    waiting, running = list(reversed(list(work))), dict[int, _Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant, tests = waiting.pop()
                started = _Running.start(mutant, tests, coverage)
                running[started.process] = started
            process, status = os.waitpid(-1, os.WNOHANG)
            if process in running:
                done = running.pop(process)
                shutil.rmtree(done.folder)
                yield done.mutant, os.waitstatus_to_exitcode(status) != 0
            for one in running.values():
                if time.monotonic() > one.until:
                    os.killpg(one.process, signal.SIGKILL)
            time.sleep(0 if process else 0.02)
    finally:
        for one in running.values():
            os.killpg(one.process, signal.SIGKILL)
            os.waitpid(one.process, 0)
            shutil.rmtree(one.folder)


@dataclass(frozen=True)
class _Running:
    mutant: Mutant
    process: int
    folder: Path
    until: float

    @classmethod
    def start(cls, mutant: Mutant, tests: Sequence[str], coverage: Coverage) -> _Running:
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        seconds = SLOWER * sum(coverage.seconds.get(test, 0) for test in tests)
        process = _fork(lambda: _test(mutant, tests, folder), folder / "log")
        return cls(mutant, process, folder, time.monotonic() + max(SHORTEST, seconds))


def _fork(work: Callable[[], int], log: Path) -> int:
    """A process in a group of its own, with what this one has imported; it exits as work says."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = work()
    finally:
        os._exit(code)


def _test(mutant: Mutant, tests: Sequence[str], folder: Path) -> int:
    _use(mutant)
    code = _pytest(folder, list(tests))
    if code == NOT_FOUND:
        # Parameters may be named after what is mutated.
        for name in [name for name in sys.modules if name.startswith("tests.unit")]:
            del sys.modules[name]
        code = _pytest(folder, sorted({test.split("::")[0] for test in tests}))
    return code


def _pytest(folder: Path, tests: list[str], *plugins: object) -> int:
    import pytest
    from hypothesis import Phase, settings

    # The same examples each time, and none made smaller: it is enough that a test fails.
    settings.register_profile(
        "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")
    # Whatever a mutant writes by a relative path goes with the folder.
    sys.path.insert(0, str(ROOT))
    os.chdir(folder)
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}"]
    options += [f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]
    return int(pytest.main([*options, *(f"{ROOT}/{test}" for test in tests)], plugins=plugins))


def _use(mutant: Mutant) -> None:
    """Have imports of the mutant's module give the mutant."""
    file = ROOT / PACKAGE / mutant.module
    name = Module(mutant.module).name

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            return compile(mutant.source, str(file), "exec", dont_inherit=True)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            if fullname != name:
                return None
            return importlib.util.spec_from_file_location(
                fullname, file, loader=Loader(fullname, str(file))
            )

    sys.meta_path.insert(0, Finder())


def _measure(out: Path) -> int:
    import coverage
    import pytest

    package = ROOT / PACKAGE
    measured = coverage.Coverage(data_file=None, include=[f"{package}/*"], config_file=False)
    seconds: dict[str, float] = {}

    class Contexts:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            measured.switch_context(item.nodeid)
            begin = time.monotonic()
            yield
            seconds[item.nodeid] = time.monotonic() - begin
            measured.switch_context("")

    measured.start()
    code = _pytest(out.parent, TESTS, Contexts())
    measured.stop()
    data = measured.get_data()
    tests = {
        str(Path(file).relative_to(package)): data.contexts_by_lineno(file)
        for file in data.measured_files()
    }
    out.write_text(json.dumps({"tests": tests, "seconds": seconds}))
    return code
