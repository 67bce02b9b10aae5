"""The area `connect`: a cluster and a REST catalog instead of this machine and a file."""

from __future__ import annotations

from benchmarks.bench import Benchmark

from . import overhead

BENCHMARKS: dict[str, Benchmark] = {"overhead": overhead.overhead}
