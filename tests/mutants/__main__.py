"""`make mutants`: what share of small faults in the packages that decide what the rows are is
noticed by their unit tests.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.mutants import running
from tests.mutants.mutations import Module, Mutant, modules
from tests.servers.iceberg_parser import iceberg_parser

EQUIVALENT = Path(__file__).with_name("equivalent.yml")
WANTED = 85


def main() -> int:
    arguments = _arguments()
    begin = time.monotonic()
    # So that no process is left that runs a mutant.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    running.preload()
    mutated = modules()
    makers = [m for module in mutated if arguments.only in module.path for m in module.mutants()]
    total = len(makers)  # a few of which cannot be made
    if arguments.sample:
        # Larger modules have more mutants: a sample of all is weighted by size.
        count = min(arguments.sample, total)
        makers = random.Random(arguments.seed).sample(makers, count)
    chosen = [mutant for make in makers if (mutant := make()) is not None]
    judged = _equivalent()
    equal = [m for m in chosen if _key(m) in judged]
    chosen = [m for m in chosen if _key(m) not in judged]
    with iceberg_parser():
        survivors = _survivors(
            mutated, chosen, f"{total} mutants, {len(equal)} equivalent", arguments.jobs
        )
    noticed_count = len(chosen) - len(survivors)
    share = 100 * noticed_count / max(len(chosen), 1)
    print(
        f"{noticed_count} of {len(chosen)} noticed ({share:.1f} %), "
        f"in {time.monotonic() - begin:.0f} s"
    )
    return 0 if share >= WANTED else 1


def _survivors(
    mutated: Sequence[Module], chosen: Sequence[Mutant], total: str, jobs: int
) -> list[Mutant]:
    """The mutants that no test notices."""
    coverage = running.measure()
    print(f"{total}, {len(chosen)} to test", flush=True)
    by_path = {module.path: module for module in mutated}
    work = [(m, coverage.of(by_path[m.module], m.line)) for m in chosen]
    survivors = [m for m, tests in work if not tests]
    for mutant in survivors:
        print(f"no test runs {mutant}", flush=True)
    done = running.run([each for each in work if each[1]], coverage, jobs)
    for tested, (mutant, noticed) in enumerate(done, 1):
        if not noticed:
            survivors.append(mutant)
            print(f"survives {mutant} ({tested} tested)", flush=True)
    return survivors


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="so many at random; 0 for all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--only", default="", help="modules whose path has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    return parser.parse_args()


def _equivalent() -> set[tuple[str, str, str]]:
    equivalents = yaml.safe_load(EQUIVALENT.read_text())
    return {
        (module, each["line"], mutant)
        for module, judged in equivalents.items()
        for each in judged
        for mutant in each["mutants"]
    }


def _key(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.module, mutant.removed, mutant.added


if __name__ == "__main__":
    sys.exit(main())
