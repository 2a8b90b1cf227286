"""The checks of `paceline doctor`, one module per area. Each has a `check_...` function that yields lines."""
