"""How a deviation of the function is measured: one file for each metric."""
