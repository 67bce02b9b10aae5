"""`make defects`: whether random histories find the defects that this project has had.

Each is put back in a copy of the last commit, and histories run until one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEFECTS = Path(__file__).with_name("defects.yml")
LONGEST = 3600


@dataclass(frozen=True)
class Defect:
    """A defect, and the histories that must find it; `defects.yml` explains the fields."""

    name: str
    file: str
    old: str
    new: str
    test: str
    slow: bool = False

    @contextmanager
    def put_back(self, copy: Path) -> Iterator[None]:
        """Put the defect into a copy of the project.

        Raises:
            ValueError: the code has changed, so that `defects.yml` must be corrected.
        """
        path = copy / "dbt" / self.file
        text = path.read_text()
        if self.old not in text:
            raise ValueError(f"{self.file} has no `{self.old}`: correct {DEFECTS.name}")
        path.write_text(text.replace(self.old, self.new))
        try:
            yield
        finally:
            path.write_text(text)

    def is_found(self, copy: Path) -> bool:
        """Run the histories in a copy of the project; return whether one of them fails."""
        marks = "slow" if self.slow else "not slow"
        pytest = [".venv/bin/pytest", "-q", "-x", "-m", marks, self.test]
        with (copy / "defects.log").open("a") as log:
            log.write(f"\n{self.name}\n")
            log.flush()
            done = subprocess.run(pytest, cwd=copy, stdout=log, stderr=log, timeout=LONGEST)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}: see {log.name}")
        return done.returncode == 1


def main() -> int:
    """Put back each defect; return 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="make defects", description=__doc__)
    parser.add_argument("--only", default="", help="defects whose name has this in it")
    parser.add_argument("--fast", action="store_true", help="without those of long histories")
    arguments = parser.parse_args()
    listed = yaml.safe_load(DEFECTS.read_text())
    defects = [Defect(name, **fields) for name, fields in listed.items() if arguments.only in name]
    missed = 0
    with copy_of_project() as copy:
        for defect in defects:
            if defect.slow and arguments.fast:
                continue
            start = time.monotonic()
            with defect.put_back(copy):
                found = defect.is_found(copy)
            missed += not found
            seconds = time.monotonic() - start
            print(
                f"{'found' if found else 'NOT FOUND'} {defect.name} ({seconds:.0f} s)", flush=True
            )
    return int(missed > 0)


@contextmanager
def copy_of_project() -> Iterator[Path]:
    """Make a copy of the last commit, with an environment of its own."""
    with tempfile.TemporaryDirectory(prefix="defects-") as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        subprocess.run(["make", "venv"], cwd=copy, check=True, stdout=subprocess.DEVNULL)
        try:
            yield copy
        finally:
            subprocess.run([copy / ".venv/bin/iceberg-stream", "stop"], cwd=copy, check=False)


if __name__ == "__main__":
    sys.exit(main())
