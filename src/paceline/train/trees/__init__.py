"""What the trainers of gradient-boosted trees share: no library is imported here, each has a folder of its own."""
