"""Codecs: hold finished slots in fewer bytes. One file each."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.CODEC, "kivi", f"{__name__}.kivi:Kivi", "2 or 4 bits: keys by channel, values by token (KIVI)"),
    PartSpec(
        Kind.CODEC,
        "think",
        f"{__name__}.think:Think",
        "drops the key channels that queries do not look at (ThinK)",
        facts={"kvpress": "think"},
    ),
    PartSpec(
        Kind.CODEC, "turbo", f"{__name__}.turbo:Turbo", "a random rotation, then the best scalar codes (TurboQuant)"
    ),
)
