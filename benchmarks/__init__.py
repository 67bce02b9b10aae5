"""Measures the adapter against its peers: `python -m benchmarks.run --area batch`."""
