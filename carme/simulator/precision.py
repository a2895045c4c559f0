"""Types of numbers, and recipes that say which type each part of training uses.

A recipe is chosen by `precision` in a plan or a workload. Products compute in one type; weights,
activations, gradients, master weights and optimizer states are each stored in one of their own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

NumberType = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
Precision = Literal[
    "fp64", "fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "fp8", "mxfp8", "nvfp4"
]

BYTES_PER_ELEMENT: dict[NumberType, float] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,  # 19 bits are used, 32 are moved
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "mxfp8": 1 + 1 / 32,  # an 8-bit scale for each 32 elements (OCP Microscaling Formats 1.0)
    "nvfp4": 1 / 2 + 1 / 16,  # an 8-bit scale for each 16 elements (NVIDIA Blackwell)
}

FALLBACK_TYPES: dict[NumberType, NumberType] = {"mxfp8": "fp8"}
"""A GPU whose data sheet has no figure for the first computes it at the rate of the second."""


class PrecisionRecipe(NamedTuple):
    """The type of each part."""

    compute: NumberType
    """Operands of products with weights, also as stored for the backward pass."""
    activations: NumberType
    """Everything between these products; attention and the output head compute in it."""
    weights: NumberType
    gradients: NumberType
    """Also the type in which they are reduced."""
    master: NumberType | None = None
    """A copy of the weights that the optimizer updates, where they are stored in fewer bits."""
    states: NumberType = "fp32"
    working_copy: NumberType | None = None
    """A copy of the weights in the compute type, where they are stored in more bits."""


PRECISIONS: dict[Precision, PrecisionRecipe] = {
    "fp64": PrecisionRecipe("fp64", "fp64", "fp64", "fp64", states="fp64"),
    "fp32": PrecisionRecipe("fp32", "fp32", "fp32", "fp32"),
    "tf32": PrecisionRecipe("tf32", "fp32", "fp32", "fp32"),
    # Micikevicius et al. 2018; Megatron-LM, DeepSpeed
    "fp16": PrecisionRecipe("fp16", "fp16", "fp16", "fp16", master="fp32"),
    "bf16": PrecisionRecipe("bf16", "bf16", "bf16", "bf16", master="fp32"),
    # torch.autocast: weights stay fp32 and are cast for each product
    "amp-fp16": PrecisionRecipe("fp16", "fp16", "fp32", "fp32", working_copy="fp16"),
    "amp-bf16": PrecisionRecipe("bf16", "bf16", "fp32", "fp32", working_copy="bf16"),
    # Transformer Engine: products in 8 or 4 bits, weights and the rest in bf16
    "fp8": PrecisionRecipe("fp8", "bf16", "bf16", "bf16", master="fp32", working_copy="fp8"),
    "mxfp8": PrecisionRecipe("mxfp8", "bf16", "bf16", "bf16", master="fp32", working_copy="mxfp8"),
    "nvfp4": PrecisionRecipe("nvfp4", "bf16", "bf16", "bf16", master="fp32", working_copy="nvfp4"),
}
