"""Per-example gradients of any model, within a memory budget."""
