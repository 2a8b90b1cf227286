"""The APIs that preceded `fit()`: trainers with persistent workers, and the functions of Ray 1.x's train functions."""
