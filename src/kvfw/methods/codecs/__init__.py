"""Codecs: hold finished slots in fewer bytes. One file each."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.CODEC, "kivi", f"{__name__}.kivi:Kivi", "2 or 4 bits: keys by channel, values by token (KIVI)"),
)
