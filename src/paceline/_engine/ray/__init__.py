"""The engine that runs workers on a Ray cluster: see `engine.RayEngine`. All of Ray that training uses is in here."""
