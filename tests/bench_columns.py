"""What the benchmark compares each operator with."""

COLUMNS = {  # operator -> its baselines on a CPU
    "gemv": {"torch fp32", "torch bf16", "dequantize + matmul"},
    "gemm": {"torch fp32", "dequantize + matmul"},
    "dual_gemm": {"torch fp32, two and silu", "dequantize + matmul"},
    "grouped_gemm": {
        "torch fp32, a loop",
        "dequantize + matmul, a loop",
        "torch grouped_mm bf16",
    },
    "grouped_dual_gemm": {"torch fp32, two and silu, a loop", "torch grouped_mm bf16 and silu"},
    "route": {"torch eager", "torch.compile"},
    "sort_by_expert": {"torch eager", "torch.compile"},
    "combine": {"torch eager", "torch.compile"},
    "quantize": {"torch eager", "torch.compile"},
    "dequantize": {"torch eager", "torch.compile"},
    "experts": {"torch grouped_mm bf16 and silu"},
    "layer": set(),
}
