"""The methods that a run can learn with."""
