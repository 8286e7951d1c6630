"""Functional regularisation of memorable past: continual learning for any PyTorch model."""
