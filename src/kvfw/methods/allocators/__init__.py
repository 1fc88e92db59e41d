"""Allocators: how a budget is divided over layers and heads. One file each."""

from kvfw.core.parts.spec import Kind, PartSpec

PARTS = (
    PartSpec(Kind.ALLOCATOR, "uniform", f"{__name__}.uniform:UniformBudgets", "the same number everywhere"),
    PartSpec(
        Kind.ALLOCATOR,
        "pyramid",
        f"{__name__}.pyramid:Pyramid",
        "more slots for low layers",
        facts={"kvpress": "pyramidkv"},
    ),
    PartSpec(
        Kind.ALLOCATOR,
        "adakv",
        f"{__name__}.adakv:AdaKV",
        "one ranking over the heads of a layer",
        facts={"kvpress": "adakv"},
    ),
    PartSpec(Kind.ALLOCATOR, "global", f"{__name__}.global_threshold:GlobalThreshold", "one threshold everywhere"),
    PartSpec(Kind.ALLOCATOR, "equalmass", f"{__name__}.equalmass:EqualMass", "the same retained mass per layer"),
    PartSpec(
        Kind.ALLOCATOR, "composite", f"{__name__}.composite:Composite", "one ranking of composite tokens over layers"
    ),
    PartSpec(Kind.ALLOCATOR, "cake", f"{__name__}.cake:Cake", "more slots where attention spreads, shifts"),
    PartSpec(Kind.ALLOCATOR, "zigzag", f"{__name__}.zigzag:ZigZag", "more slots where attention needs more tokens"),
    PartSpec(
        Kind.ALLOCATOR,
        "simlayer",
        f"{__name__}.simlayer:SimLayer",
        "few slots for layers that look nearby",
        facts={"kvpress": "simlayerkv"},
    ),
    PartSpec(
        Kind.ALLOCATOR,
        "duo",
        f"{__name__}.duo:Duo",
        "everything for heads that look far",
        facts={"kvpress": "duo_attention"},
    ),
    PartSpec(
        Kind.ALLOCATOR,
        "table",
        f"{__name__}.table:Table",
        "in proportion to the weights of a file",
        facts={"kvpress": "lukv"},
    ),
)
