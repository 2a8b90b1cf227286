"""What `paceline doctor` looks at, a module for each part; each has `looked_at`, which gives lines."""
