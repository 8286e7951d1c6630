"""Results: what is recorded of a run, and what is computed from it."""
