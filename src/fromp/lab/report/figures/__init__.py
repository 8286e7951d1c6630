"""Figures in one style; each takes numbers and gives a matplotlib figure."""
