"""A block: what one microbatch costs the embedding, a layer or the head, and the products in it.

Counts FLOPs, parameters and bytes; knows no model, no device and no second.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of (rows x inner) with (inner x columns)."""

    rows: float
    inner: float
    columns: float
    count: float = 1

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each pair of numbers."""
        return 2 * self.rows * self.inner * self.columns * self.count

    @property
    def weights(self) -> float:
        """Parameters, where the right side is a weight."""
        return self.inner * self.columns * self.count


@dataclass(frozen=True, slots=True)
class Block:
    """One microbatch's work in the embedding, a layer or the head, on one processor.

    linears  products with weights that every group of a stage holds
    experts  products with the weights of the experts that this processor holds
    scores   attention's products of activations with activations, which have no W
    table    parameters that are looked up, not multiplied with
    moved    bytes that norms, residuals, activation functions and permutations move in F
    saved    bytes that F keeps for the backward
    cheap    of these, outputs of norms and activation functions
    again    bytes that are moved to compute these once more
    inputs   bytes of what the block reads
    routed   bytes that go to experts in F, and as many back; the backward does it again
    gathers  how often the processors of a group gather or scatter a microbatch's values in F; the
             backward does it as often
    """

    name: str
    linears: tuple[Product, ...] = ()
    experts: tuple[Product, ...] = ()
    scores: tuple[Product, ...] = ()
    table: float = 0.0
    moved: float = 0.0
    saved: float = 0.0
    cheap: float = 0.0
    again: float = 0.0
    inputs: float = 0.0
    routed: float = 0.0
    gathers: int = 0

    @property
    def shared_parameters(self) -> float:
        """Parameters that every device of a stage holds."""
        return self.table + sum(product.weights for product in self.linears)

    @property
    def expert_parameters(self) -> float:
        """Parameters of the experts that this device holds."""
        return sum(product.weights for product in self.experts)

    @property
    def parameters(self) -> float:
        """All parameters that this device multiplies with."""
        return self.shared_parameters + self.expert_parameters

    @property
    def forward_flops(self) -> float:
        """FLOPs of a forward."""
        return self.weight_grad_flops + _flops(self.scores)

    @property
    def input_grad_flops(self) -> float:
        """Scores have two sides, and so two gradients."""
        return self.weight_grad_flops + 2 * _flops(self.scores)

    @property
    def weight_grad_flops(self) -> float:
        """FLOPs of a weight gradient; scores have none."""
        return _flops(self.linears) + _flops(self.experts)

    @property
    def flops(self) -> float:
        """Forward and backward, without recomputing anything."""
        return self.forward_flops + self.input_grad_flops + self.weight_grad_flops


def _flops(products: tuple[Product, ...]) -> float:
    return sum(product.flops for product in products)
