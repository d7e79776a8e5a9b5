"""A linear layer's rows, or its columns, on each rank."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import torch as nk
from ..layout import SF_VEC
from ..nn.frozen import InputQuant, choice
from ..nn.linear import NVFP4Linear, autocast
from ..nn.recipes import Recipe
from .collectives import REDUCE_DTYPES, Group, agree, rank_and_world, reduced, refuse_gradients
from .cut import Cut, Slice
from .peers import TRANSPORTS, Transport, choose, of_call, said


class _LinearSlice(Slice, NVFP4Linear):
    """What ColumnParallel and RowParallel share."""

    options: dict[str, Any]
    """How the layer was cut, and `dtype`: keyword arguments of the class."""

    def _cut(self, cuts: dict[str, Cut], group: Group, **options: Any) -> None:
        self.group, self.options, self.agreed = group, {"group": group, **options}, set()
        self.rank, self.world = rank_and_world(group)
        self.cuts = {name: cut for name, cut in cuts.items() if getattr(self, name) is not None}

    @property
    def whole_in_features(self) -> int:
        """K of the whole layer."""
        cut = self.cuts["weight"]
        return 2 * cut.whole if cut.dim == 1 else self.in_features

    @property
    def whole_out_features(self) -> int:
        """N of the whole layer."""
        cut = self.cuts["weight"]
        return cut.whole if cut.dim == 0 else self.out_features

    def unset(self, **options: Any) -> Self:
        """A slice of a layer of the same sizes, on the meta device: what a file's layer becomes."""
        sizes = self.whole_in_features, self.whole_out_features, self.bias is not None
        return type(self)(*sizes, device="meta", **options, **self.options)

    @classmethod
    def slice_of(cls, layer: nn.Module, **options: Any) -> Self:
        """The rank's slice of a whole layer: a copy, so that the layer's memory can go.

        layer: an NVFP4Linear; or an nn.Linear on the meta device, whose slice stays unset for
            load_checkpoint.
        options: those of the class that say how to cut.

        Raises TypeError for other modules, and ValueError for an nn.Linear with values and for a
        layer with low-rank factors.
        """
        if type(layer) not in (nn.Linear, NVFP4Linear):
            raise TypeError(f"layer: {type(layer).__name__}, expected NVFP4Linear or nn.Linear")
        assert isinstance(layer, (nn.Linear, NVFP4Linear))
        given: dict[str, Any] = {"dtype": layer.weight.dtype}
        if isinstance(layer, NVFP4Linear):
            if layer.svdquant_lora_a is not None:
                raise ValueError("layer: has low-rank factors, which are not cut")
            plain = (v.dtype for v in (layer.bias, layer.pre_quant_scale) if v is not None)
            given = {
                "input_quant": layer.input_quant,
                "input_scale_inverse": layer.input_scale_inverse is not None,
                "pre_quant_scale": layer.pre_quant_scale is not None,
                "row_scales": layer.weight_scale_2.dim() == 1,
                "dtype": next(plain, None),
            }
        elif not layer.weight.is_meta:
            raise ValueError("layer: nn.Linear with values, expected it quantised or on 'meta'")
        sizes = layer.in_features, layer.out_features, layer.bias is not None
        made = cls(*sizes, device="meta", **given, **options)
        if not layer.weight.is_meta:
            made._set(**{n: made.own(n, value.data) for n, value in layer.named_parameters()})
        return made.train(layer.training)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        input_quant: InputQuant = None,
        recipe: Recipe = "amax",
        **options: Any,
    ) -> Self:
        """Quantises the whole layer, which the rank holds meanwhile, and keeps the rank's slice.

        input_quant, recipe: see NVFP4Linear.from_linear. options: see slice_of.
        """
        whole = NVFP4Linear.from_linear(linear, input_quant=input_quant, recipe=recipe)
        return cls.slice_of(whole, **options)


class ColumnParallel(_LinearSlice):
    """The rank's rows of a linear layer: [.., K] -> [.., N / ranks], and nothing is sent.

    x is the same on all ranks. The result is the rank's columns of the whole layer's result, after
    which tensor parallelism names the layer.

    in_features, out_features: K and N of the whole layer. The attributes of these names are the
        rank's own. The other arguments that are not listed here are NVFP4Linear's.
    parts: rows of each layer that a fused one joins, such as those of q, k and v. Each is cut by
        itself, so that a rank has some of every part.
    head_dim: rows that stay together on one rank.
    group: of torch.distributed, None for all processes.

    Parameters are those of NVFP4Linear, with the rank's rows alone.

    Raises ValueError where a part has no whole number of heads for each rank. So key-value heads
    that are fewer than the ranks are refused: leave such layers whole. Raises NotImplementedError
    for x that wants a gradient.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        parts: Sequence[int] | None = None,
        head_dim: int = 1,
        group: Group = None,
        input_quant: InputQuant = None,
        input_scale_inverse: bool = False,
        pre_quant_scale: bool = False,
        row_scales: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        rows = _rows(out_features, parts, head_dim, *rank_and_world(group))
        super().__init__(
            in_features, rows.extent, bias, input_quant=input_quant,
            input_scale_inverse=input_scale_inverse, pre_quant_scale=pre_quant_scale,
            row_scales=row_scales, device=device, dtype=dtype,
        )  # fmt: skip
        cuts = dict.fromkeys(("weight", "weight_scale", "bias"), rows)
        if row_scales:
            cuts["weight_scale_2"] = rows
        self._cut(cuts, group, parts=parts, head_dim=head_dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        refuse_gradients(x=x)
        return super().forward(x)


class RowParallel(_LinearSlice):
    """The rank's columns of a linear layer: [.., K / ranks] -> [.., N], the sum over the ranks.

    x is the rank's columns of the whole layer's input, as ColumnParallel makes them. All ranks get
    the same result. They give the same number of tokens.

    in_features, out_features: K and N of the whole layer. The attributes of these names are the
        rank's own. The other arguments that are not listed here are NVFP4Linear's.
    reduce_dtype: in which the ranks' sums are sent and added: None is x's dtype, so each of them is
        rounded to it; torch.float32 takes twice the bytes and rounds once, at the end.
    group: of torch.distributed, None for all processes.
    transport: how the sums travel.
        "peer"        each rank writes to the other GPUs' memory, of one host: see PeerMemory. All
            ranks construct the layer then. RuntimeError where that is not possible.
        "collective"  by the group's all_reduce.
        "auto"        "peer" where it is possible. repr() says which it is, and why. Tensors of
            another device than the one whose memory is shared go by "collective".

    Parameters are those of NVFP4Linear: the rank's columns of weight, weight_scale and
    pre_quant_scale, the others whole. All ranks have the bias. Rank 0 of the group adds it to its
    sum, in fp32.

    Raises ValueError where in_features is no multiple of 16 for each rank, since scale factors are
    of 16 columns, and for input_quant="amax" or "token", since no rank has whole rows. Raises
    ValueError on all ranks where their calls differ, as ExpertParallel does. Raises
    NotImplementedError for x that wants a gradient.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        reduce_dtype: torch.dtype | None = None,
        transport: Transport = "auto",
        group: Group = None,
        input_quant: InputQuant = None,
        input_scale_inverse: bool = False,
        pre_quant_scale: bool = False,
        row_scales: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choice("reduce_dtype", reduce_dtype, REDUCE_DTYPES)
        choice("transport", transport, TRANSPORTS)
        if input_quant in ("amax", "token"):
            what = "one that needs no whole row of the input, which no rank has"
            raise ValueError(f"input_quant: {input_quant!r}, expected {what}")
        columns = _columns(in_features, *rank_and_world(group))
        super().__init__(
            columns.extent, out_features, bias, input_quant=input_quant,
            input_scale_inverse=input_scale_inverse, pre_quant_scale=pre_quant_scale,
            row_scales=row_scales, device=device, dtype=dtype,
        )  # fmt: skip
        self.reduce_dtype = reduce_dtype
        self.transport: Transport = transport
        cuts = {"weight": columns.per(2), "weight_scale": columns.per(SF_VEC)}
        cuts["pre_quant_scale"] = Cut(0, columns.whole, columns.ranges)
        self._cut(cuts, group, reduce_dtype=reduce_dtype, transport=transport, dtype=dtype)
        self.memory, self.why_collective = choose(transport, group)

    def forward(self, x: Tensor) -> Tensor:
        refuse_gradients(x=x)
        x = autocast(x)
        a, sfa, alpha, _ = self._operand(x)
        partial = nk.gemm(
            a, self.weight, sfa, self.weight_scale, alpha=alpha,
            bias=self.bias if self.rank == 0 else None, out_dtype=self.reduce_dtype or x.dtype,
        )  # fmt: skip
        agree(
            self.agreed, x, self.world, self.group, layer="RowParallel",
            tokens=x.shape[:-1].numel(), dtype=x.dtype, reduce_dtype=self.reduce_dtype,
            input_quant=self.input_quant, in_features=self.whole_in_features,
            out_features=self.out_features, transport=self.transport,
        )  # fmt: skip
        memory = of_call(self.memory, self.transport, x)
        if memory is not None:
            return memory.all_reduce(partial, x.dtype)
        return reduced(partial, self.group).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {said(self.memory, self.why_collective)}"


def _rows(
    out_features: int, parts: Sequence[int] | None, head_dim: int, rank: int, world: int
) -> Cut:
    if head_dim < 1:
        raise ValueError(f"head_dim: {head_dim}, expected at least 1")
    if parts is not None and sum(parts) != out_features:
        raise ValueError(f"parts: {list(parts)}, expected a sum of out_features = {out_features}")
    ranges, start = [], 0
    for i, rows in enumerate(parts or [out_features]):
        if rows % (world * head_dim):
            name = "out_features" if parts is None else f"parts[{i}]"
            heads = f"{rows / head_dim:g} heads of {head_dim} rows"
            came = heads if head_dim > 1 else f"{rows} rows"
            raise ValueError(f"{name}: {came}, expected a multiple of {world} ranks")
        each = rows // world
        ranges.append((start + rank * each, start + (rank + 1) * each))
        start += rows
    return Cut(0, out_features, tuple(ranges))


def _columns(in_features: int, rank: int, world: int) -> Cut:
    if in_features % (world * SF_VEC):
        expected = f"expected a multiple of {world} ranks x {SF_VEC}, as scale factors are of 16"
        raise ValueError(f"in_features: {in_features}, {expected}")
    each = in_features // world
    return Cut(1, in_features, ((rank * each, (rank + 1) * each),))
