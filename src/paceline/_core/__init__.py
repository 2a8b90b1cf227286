"""Clock, codec, settings and operating system: the ground floor. Imports nothing else of Paceline."""
