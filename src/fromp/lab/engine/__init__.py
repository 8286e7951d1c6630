"""What learns a plan: fitting, runs, processes, progress."""
