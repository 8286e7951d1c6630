"""Streams of tasks, the networks for them, and their settings."""
