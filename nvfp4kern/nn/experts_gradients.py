"""What passes on gradients through the operators of experts."""

import torch

from .. import torch as nk


class Gradient(torch.autograd.Function):
    """One of the two grouped products where the input wants a gradient."""

    @staticmethod
    def forward(ctx, x, bias, experts, name, offsets):  # type: ignore[no-untyped-def]
        ctx.experts, ctx.name, ctx.dtype = experts, name, x.dtype
        ctx.save_for_backward(offsets)
        return experts._product(name, experts._operand(x, name), offsets, x.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (offsets,) = ctx.saved_tensors
        dx = dbias = None
        row = torch.arange(len(grad), device=grad.device, dtype=offsets.dtype)
        inside = (row < offsets[-1])[:, None]
        if ctx.needs_input_grad[0]:
            weights = ctx.experts.dequantize(ctx.experts.stacks[ctx.name == "down"], ctx.dtype)
            dx = nk.grouped_gemm(
                grad.contiguous(), weights.transpose(1, 2), offsets=offsets, out_dtype=ctx.dtype
            )
            dx = torch.where(inside, dx, 0.0)
        if ctx.needs_input_grad[1]:
            bias = getattr(ctx.experts, f"{ctx.experts.stacks[ctx.name == 'down']}_bias")
            expert = torch.searchsorted(offsets[1:-1], row, right=True)
            dbias = torch.zeros(bias.shape, dtype=torch.float32, device=grad.device)
            dbias.index_add_(0, expert, torch.where(inside, grad.float(), 0.0))
            dbias = dbias.to(bias.dtype)
        return dx, dbias, None, None, None


class Combined(torch.autograd.Function):
    """nk.combine where something that it adds wants a gradient. A row has one selection at most."""

    @staticmethod
    def forward(ctx, products, row_of, weights, residual, dtype):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(products, row_of, weights)
        ctx.residual = None if residual is None else residual.dtype
        return nk.combine(products, row_of, weights, residual=residual, out_dtype=dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        products, row_of, weights = ctx.saved_tensors
        dproducts = dweights = dresidual = None
        of_selections = grad.float().repeat_interleave(weights.shape[-1], 0)
        if ctx.needs_input_grad[0]:
            parts = of_selections * weights.reshape(-1, 1).float()
            rows = row_of.where(row_of >= 0, len(products))  # one more, for those that have none
            dproducts = parts.new_zeros(len(products) + 1, products.shape[1])
            dproducts = dproducts.index_copy_(0, rows.long(), parts)[:-1].to(products.dtype)
        if ctx.needs_input_grad[2]:
            sums = (products[row_of.clamp(min=0)].float() * of_selections).sum(-1)
            dweights = sums.where(row_of >= 0, 0.0).view(weights.shape).to(weights.dtype)
        if ctx.needs_input_grad[3]:
            dresidual = grad.to(ctx.residual)
        return dproducts, None, dweights, dresidual, None
