"""The APIs that came before `fit()`: trainers whose workers stay, and the functions of Ray 1.x's train functions."""
