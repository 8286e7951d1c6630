"""What everything stands on: errors, inputs, examples, storage."""
