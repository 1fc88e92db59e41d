"""The inputs and outputs of compression: slots, rotations, observations."""
