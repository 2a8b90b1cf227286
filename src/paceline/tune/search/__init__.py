"""What suggests configurations: grid and random search, Optuna, and a base for others."""
