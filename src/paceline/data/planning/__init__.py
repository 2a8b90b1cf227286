"""What a dataset is to compute: the plan, its optimization, and the questions it can answer without running."""
