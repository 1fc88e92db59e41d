"""Refiners: change the slots that were kept. One file each."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (PartSpec(Kind.REFINER, "refit", f"{__name__}.refit:Refit", "biases and values anew, by least squares"),)
