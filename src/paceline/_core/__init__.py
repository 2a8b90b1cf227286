"""Clock, codec, settings and operating system: the lowest layer. Imports nothing else from Paceline."""
