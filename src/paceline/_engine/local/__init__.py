"""Workers on this machine: forked from a zygote, or spawned where forking is not safe."""
