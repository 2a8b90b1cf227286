"""Workers on this machine: forked from a warm process, or spawned where forking is not safe."""
