"""Variational continual learning."""
