"""Where workers live. `base` says what an engine does, `messages` what crosses to a worker and back."""
