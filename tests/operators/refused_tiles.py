"""Calls that a forced tile cannot serve, and what is said of each."""

import torch
from generators import codes, floats, rng_of, scales
from route_calls import integers
from route_tiles import unaligned

from nvfp4kern.verify import data


def operator_call(operator, device, m=4, n=64, k=512, placed=None):
    """What explain takes."""
    rng = rng_of(m, n, k)
    a, b = data.exact_family(rng, m, k), data.exact_family(rng, n, k)
    args = codes(a, device), codes(b, device), scales(a, "linear", rng, device)
    args = [*args, scales(b, "linear", rng, device)]
    if operator.endswith(" of halves"):
        args[0], args[2] = floats(data.small_integers(rng, m, k), "float16", device), None
        operator = operator.removesuffix(" of halves")
        if operator == "dual_gemm":
            return operator, args[0], args[1], args[1], None, args[3], args[3]
    if operator == "gemv":
        return "gemv", args[1], args[0][:1], args[3], args[2][:1]
    if operator == "route":
        x, w = integers(rng, m, n, k)
        x, w = (placed(t, device) if placed else floats(t, "float16", device) for t in (x, w))
        return "route", x, w, 2
    if operator == "grouped_dual_gemm":
        offsets = torch.tensor([0, m], dtype=torch.int32, device=device)
        return "grouped_dual_gemm", args[0], args[1][None], args[2], args[3][None], offsets
    if operator == "dual_gemm":  # only the factors of the ups are not aligned
        a, b, sfa, sfb = args
        ups = torch.empty(sfb.numel() + 1, dtype=torch.uint8, device=device)[1:].view(sfb.shape)
        return "dual_gemm", a, b, b, sfa, sfb, ups
    return "gemm", *args


def in_fp32(x, device):
    return floats(x, "float32", device)


NO_KERNEL = "the operator has no kernel of it"

REFUSED = [  # (tile, operator, sizes, environment, what the message says)
    ("sm80/gemv:w8", "gemv", {"k": 512}, {}, "K is 512, too little for 8 warps"),
    ("sm80/gemm:t64", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm80/route:t32", "route", {"placed": unaligned}, {}, "not aligned to 16 bytes"),
    ("sm80/route:t32", "route", {"placed": in_fp32}, {}, "are not of one 16-bit type"),
    ("sm90/gemv:short8", "gemm", {"m": 2}, {}, "it is for one NVFP4 token and one matrix"),
    ("sm90/gemv:map8", "gemm", {"m": 2}, {}, "it is for one NVFP4 token"),
    ("sm90/gemv:map16", "gemv", {"k": 320}, {}, "no tensor map describes the weights"),
    ("sm90/gemv:tall8", "gemv", {"k": 80}, {}, "K or an address is not aligned"),
    ("sm90/gemv:tall8", "gemv", {}, {"NVFP4KERN_BATCH_INVARIANT": "1"}, "BATCH_INVARIANT"),
    ("sm90/gemm:t16", "gemm", {"k": 80}, {}, "no tensor map describes the weights"),
    ("sm90/gemm:t16", "gemm", {"k": 96}, {}, "the weights' scale factors are not aligned"),
    ("sm90/gemm:t32", "dual_gemm", {}, {}, "the weights' scale factors are not aligned"),
    ("sm90/gemm:t64", "gemm", {}, {"NVFP4KERN_BATCH_INVARIANT": "1"}, "it splits K"),
    ("sm90/gemm:n256", "gemm", {}, {}, "its tokens have 16 bits"),
    ("sm90/gemm:n256", "gemm of halves", {"k": 96}, {}, "K is no multiple of 64"),
    ("sm90/gemm:n256", "gemm of halves", {}, {"NVFP4KERN_BATCH_INVARIANT": "1"}, "another order"),
    ("sm90/gemm:n256", "dual_gemm of halves", {}, {}, NO_KERNEL),
    ("sm90/gemm:w96", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm90/gemm:t32", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm90/route:t8x64", "route", {"placed": unaligned}, {}, "no tensor map describes x and w"),
    ("sm90/route:t8x64", "route", {"placed": in_fp32}, {}, "x and w of one 16-bit type"),
    ("sm100/gemm:n64", "gemm", {"k": 80}, {}, "no tensor map describes the tokens"),
    ("sm100/gemm:p256", "dual_gemm", {}, {}, NO_KERNEL),
    ("sm100/gemv:w8", "gemm", {"m": 8, "n": 1, "k": 1 << 18}, {}, "do not fit into shared memory"),
    ("sm120/gemv:w8", "gemm", {"m": 8, "n": 1, "k": 1 << 14}, {}, "do not fit into shared memory"),
    ("sm100/gemm:n64k4", "gemm", {"k": 512}, {}, "K has fewer K tiles than"),
    ("sm100/gemm:p256", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm100/gemm:p128k2", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm100/gemm:p192m2", "grouped_dual_gemm", {}, {}, NO_KERNEL),
    ("sm100/kind_f16:n64", "gemm of halves", {"k": 80}, {}, "no tensor map describes the weights"),
    ("sm100/kind_f16:p256", "dual_gemm of halves", {}, {}, NO_KERNEL),
    ("sm100/kind_f16:p128", "grouped_dual_gemm of halves", {}, {}, NO_KERNEL),
    ("sm100/kind_f16:n64k4", "gemm of halves", {"k": 384}, {}, "K has fewer K tiles than"),
    ("sm100/route:c16", "route", {"placed": unaligned}, {}, "no tensor map describes x and w"),
    ("sm100/route:c16", "route", {"placed": in_fp32}, {}, "x and w of one 16-bit type"),
    ("sm100/route:l128", "route", {"n": 272}, {}, "it takes up to 256 experts"),
]
