"""Search over many runs for the best one."""
