"""The laboratory: benchmarks, methods, runs, reports."""
