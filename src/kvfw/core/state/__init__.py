"""What compression looks at and returns: slots, rotations, observations."""
