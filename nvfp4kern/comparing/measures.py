"""The figures of a comparison: perplexity, divergence of logits, relative errors of layers."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

ROWS = 64
"""Positions whose logits are held in float64 at a time."""


@dataclass(frozen=True)
class LayerErrors:
    """Relative errors of one layer: |exact - found| / |exact|, by the root of the sum of squares.
    Where all of `exact` is 0, it is |found|."""

    output: float
    """Of its results for the inputs that it has in the reference, over all tokens. So errors of
    layers before it have no part in it."""
    weight: float
    """Of its weight, with what multiplies the input first (AWQ); of all experts' together."""


@dataclass(frozen=True)
class Comparison:
    """What compare_models found. A position is a token that has another behind it."""

    sequences: int
    losses_of_reference: Tensor
    """float64 [positions]: -log of the probability of the token that follows, in nats."""
    losses: Tensor
    divergences: Tensor
    """float64 [positions]: see `divergence`."""
    same: float
    """Share of positions at which both take the same token for the likeliest."""
    layers: dict[str, LayerErrors]
    """By name, those that are NVFP4 and that a token reached."""

    @property
    def perplexity_of_reference(self) -> float:
        return perplexity(self.losses_of_reference)

    @property
    def perplexity(self) -> float:
        return perplexity(self.losses)

    @property
    def kl(self) -> float:
        """The mean divergence, each position counting once."""
        return float(self.divergences.mean())

    def kl_at(self, share: float) -> float:
        """The divergence that this share of the positions does not exceed, between two of them on
        the line that joins them."""
        return float(self.divergences.quantile(share))

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return {
            "sequences": self.sequences,
            "positions": len(self.losses),
            "perplexity_of_reference": self.perplexity_of_reference,
            "perplexity": self.perplexity,
            "kl": {
                "mean": self.kl,
                "median": self.kl_at(0.5),
                "p99": self.kl_at(0.99),
                "most": self.kl_at(1.0),
            },
            "same_likeliest": self.same,
            "layers": {name: asdict(errors) for name, errors in self.layers.items()},
        }


def perplexity(losses: Tensor) -> float:
    """exp of the mean loss: Jelinek, Mercer, Bahl and Baker, "Perplexity, a measure of the
    difficulty of speech recognition tasks" (1977), with e as the base. A token is predicted from
    those before it in its sequence, and the first of a sequence from none, so it does not count."""
    return float(losses.mean().exp())


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(p || q) = sum of p (log p - log q) over the vocabulary, in nats, of each row of logits
    [.., V], p being softmax of the reference's and q of the other's: Kullback and Leibler, "On
    information and sufficiency" (1951)."""
    log_p, log_q = reference.log_softmax(-1), logits.log_softmax(-1)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)


def scored(reference: Tensor, logits: Tensor, ids: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """(losses of the reference, losses, divergences, whether the likeliest token is the same) of
    logits [T, V] for a sequence of T tokens, in pieces."""
    following = ids[1:]
    for at in range(0, len(following), ROWS):
        piece = slice(at, min(at + ROWS, len(following)))
        p, q = reference[piece].double(), logits[piece].double()
        losses = (cross_entropy(x, following[piece], reduction="none") for x in (p, q))
        yield *losses, divergence(p, q), p.argmax(-1) == q.argmax(-1)


class Squares:
    """Sums of squares, in float64, of which a relative error is made."""

    def __init__(self) -> None:
        self.wrong = self.norm = 0.0
        self.count = 0

    def add(self, exact: Tensor, found: Tensor) -> None:
        exact, self.count = exact.float(), self.count + exact.numel()
        self.wrong += float((found.float() - exact).square().sum(dtype=torch.float64))
        self.norm += float(exact.square().sum(dtype=torch.float64))

    def error(self) -> float:
        return math.sqrt(self.wrong / self.norm if self.norm else self.wrong)
