"""Where workers live. `base` defines the engine interface, `messages` what driver and workers send each other."""
