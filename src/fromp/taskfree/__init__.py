"""Learning without given task boundaries."""
