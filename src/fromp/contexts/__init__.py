"""Where the function is held in a step: one file for each context."""
