"""Learning without announced tasks."""
