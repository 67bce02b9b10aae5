"""Runs benchmarks: `python -m benchmarks.run --area batch [--only NAME] [--runs N]`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import report
from .bench import Bench, Benchmark
from .harness import BenchmarkError, Result

AREAS = ("batch", "connect", "write", "rows", "stream", "read")
BUSY = 0.5  # load above which figures are not to be trusted


def main() -> int:
    options = _options()
    benchmarks: dict[str, Benchmark] = importlib.import_module(
        f"benchmarks.{options.area}"
    ).BENCHMARKS
    if options.list:
        print("\n".join(benchmarks))
        return 0
    unknown = set(options.only) - set(benchmarks)
    if unknown:
        print(f"Unknown: {', '.join(sorted(unknown))}. There are: {', '.join(benchmarks)}")
        return 2
    if os.getloadavg()[0] > BUSY:
        print(f"The machine is busy (load {os.getloadavg()[0]:.1f}): ratios will be blurred.")
    wanted = options.only or list(benchmarks)
    results, failed = _run(options, {name: benchmarks[name] for name in wanted})
    print("\n" + "\n".join(map(str, results)))
    if failed:
        print(f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


def _run(
    options: argparse.Namespace, benchmarks: dict[str, Benchmark]
) -> tuple[list[Result], list[str]]:
    results: list[Result] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder).resolve(), options.runs, options.small, options.sf)
        try:
            for name, benchmark in benchmarks.items():
                print(f"{name}", flush=True)
                begin = time.monotonic()
                try:
                    results += _recorded(options, benchmark(bench))
                except BenchmarkError as error:
                    print(f"  FAILED: {error}")
                    failed.append(name)
                except Exception:
                    traceback.print_exc()
                    failed.append(name)
                print(f"  {time.monotonic() - begin:.0f} s in all", flush=True)
        finally:
            bench.close()
    return results, failed


def _recorded(options: argparse.Namespace, results: list[Result]) -> list[Result]:
    """Write the results at once: a later benchmark may fail. Small runs are only told."""
    if options.small:
        print("".join(f"  {result.name}: {result.note}\n" for result in results), end="")
    else:
        for result in results:
            result.write(options.area)
        report.main()
    return results


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--area", default="batch", choices=AREAS)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--runs", type=int, metavar="N", help="pairs of runs of each benchmark")
    parser.add_argument("--sf", default="1", help="scale factor of TPC-H, e.g. 10")
    parser.add_argument("--small", action="store_true", help="a tenth of the work, one run")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
