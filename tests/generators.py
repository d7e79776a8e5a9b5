"""What tests need around the data: tensors, scale layouts, poisoned and guarded outputs."""

from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from nvfp4kern.verify import data, reference
from nvfp4kern.verify.reference import padded, to_blocked

DTYPES = ("float16", "bfloat16", "float32")
ODD_SHAPES = [(1, 1, 16), (3, 17, 48), (17, 129, 80), (129, 3, 176), (130, 33, 256)]  # M, N, K
# Alphas by which sums become infinite, overflow, become NaN and stay what they are.
INFINITE = np.float32([-np.inf, np.inf, 3e38, -3e38, np.nan, 1e-3])
POISON = -4320.0  # exact in every output type
GUARD = 0xA5
AROUND = 256  # bytes before and after an input


def rng_of(*seed):
    return np.random.default_rng(seed)


def every_half(dtype):
    """All 2^16 of float16 or bfloat16 as float32 [96, 2048], among neighbours and among any
    others, so that blocks have every scale factor."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    order = np.concatenate([bits, rng_of(6).permutation(bits), bits ^ 0x8000 * (bits & 1)])
    wide = order.view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        wide = (order.astype(np.uint32) << 16).view(np.float32)
    return wide.reshape(96, 2048)


# --- NumPy arrays to torch tensors and back ---


def surrounded(tensor, device):
    """A contiguous copy on `device`, aligned, in the middle of NaNs: bytes of 0xFF in any dtype."""
    if tensor.numel() == 0:
        return tensor.new_empty(tensor.shape, device=device)
    size = tensor.numel() * tensor.element_size()
    buffer = torch.full((size + 2 * AROUND,), 0xFF, dtype=torch.uint8, device=device)
    inner = buffer[AROUND : AROUND + size].view(tensor.dtype).view(tensor.shape)
    return inner.copy_(tensor)


def from_numpy(array, device):
    """A copy; an empty one has the strides of its shape (NumPy gives it zeros)."""
    return surrounded(torch.from_numpy(np.array(array)), device)


def codes(operand, device, native=True):
    """The codes as float4_e2m1fn_x2, or as bytes."""
    tensor = from_numpy(operand.codes, device)
    return tensor.view(torch.float4_e2m1fn_x2) if native else tensor


def scale_bytes(array, device, native=True):
    tensor = from_numpy(array, device)
    return tensor.view(torch.float8_e4m3fn) if native else tensor


def floats(values, dtype, device):
    """Values that `dtype` can represent."""
    given = torch.from_numpy(np.array(values, np.float32)).to(getattr(torch, dtype))
    return surrounded(given, device)


def values(tensor):
    """A float tensor of torch or NumPy -> float32 values."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().cpu().float().numpy()
    return tensor.astype(np.float32)


def raw(tensor):
    """The bytes of a tensor in logical order, uint8, for comparing."""
    if not isinstance(tensor, torch.Tensor):
        return np.ascontiguousarray(tensor).view(np.uint8)
    if tensor.element_size() == 1:  # float4 cannot be copied as it is
        return tensor.view(torch.uint8).cpu().contiguous().numpy()
    if tensor.numel() == 0:
        return np.zeros(0, np.uint8)
    return tensor.detach().cpu().contiguous().ravel().view(torch.uint8).numpy()


class Halves(NamedTuple):
    """An operand of 16-bit elements, which has no scale factors."""

    values: np.ndarray
    dtype: str


def halves(rng, dtype, *shape, scale=1.0):
    return Halves(data.halves(rng, dtype, *shape, scale=scale).astype(np.float64), dtype)


def integers(rng, dtype, *shape, most=3):
    return Halves(data.small_integers(rng, *shape, most=most).astype(np.float64), dtype)


def halves_like(make, rng, dtype, *shape, scale=100.0):
    """Whose sums are exact, or round, as those of what `make` makes."""
    if make is data.full_range:
        return halves(rng, dtype, *shape, scale=scale)
    return integers(rng, dtype, *shape)


def elements(operand, device, native=True):
    """What a call takes: codes, or 16-bit numbers."""
    if isinstance(operand, Halves):
        return floats(operand.values, operand.dtype, device)
    return codes(operand, device, native)


# --- Scale layouts ---

SCALE_FORMS = ("linear", "strided", "blocked", "flat", "permuted")


def layout_of(form):
    return "linear" if form in ("linear", "strided", "padded") else "blocked"


def scales(operand, form, rng, device, byte=None):
    """The scales in one of SCALE_FORMS; padding holds `byte`, else random non-zero bytes.

    As "padded" they are "strided" with rows of whole 16 bytes.
    """
    if isinstance(operand, Halves):
        return None
    array = operand.scales
    *batch, rows, cols = array.shape
    if form == "linear":
        return scale_bytes(array, device)
    if form in ("strided", "padded"):
        width = cols + 3 if form == "strided" else padded(cols, 16)
        wide = rng.integers(0, 256, (*batch, rows, width), np.uint8)
        wide[..., :cols] = array
        return scale_bytes(wide, device)[..., :cols]
    shape = (*batch, padded(rows, 128), padded(cols, 4))
    noise = rng.integers(1, 256, shape, np.uint8)
    blocked = to_blocked(array, noise if byte is None else np.full(shape, byte, np.uint8))
    if form == "flat":
        return scale_bytes(blocked.reshape(-1), device)
    if form == "permuted":
        atoms = blocked.reshape(*batch, shape[-2] // 128, shape[-1] // 4, 32, 4, 4)
        view = scale_bytes(atoms, device)
        return view.permute(3, 4, 1, 5, 2, 0) if batch else view.permute(2, 3, 0, 4, 1)
    return scale_bytes(blocked, device)


# --- Outputs that show what was written, inputs that show when they were ---

ORDERS = ("row", "padded rows", "column", "padded columns")


class Guarded:
    """A poisoned tensor inside a buffer of guard bytes; [.., M, N] in one of ORDERS."""

    def __init__(self, shape, dtype, device, order="row"):
        *batch, rows, cols = shape if len(shape) > 1 else (1, *shape)
        gap = 5 if order.startswith("padded") else 0
        inner, outer = (cols, rows) if "row" in order else (rows, cols)
        pitch = max(inner + gap, 1)
        strides = (pitch, 1) if "row" in order else (1, pitch)
        strides = (max(pitch * outer + 2 * gap, 1), *strides) if batch else strides
        strides = strides if len(shape) > 1 else (1,)
        size = 64 + (batch[0] if batch else 1) * (pitch * outer + 2 * gap) + 64
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self.buffer = torch.empty(size, dtype=dtype, device=device)
        self.buffer.view(torch.uint8).fill_(GUARD)
        self.tensor = torch.as_strided(self.buffer, shape, strides, 64)
        self.tensor.view(torch.uint8 if dtype.itemsize == 1 else dtype).fill_(
            0x5A if dtype.itemsize == 1 else int(POISON)
        )
        self._before = self.buffer.view(torch.uint8).clone()
        self._place = (shape, strides, 64)

    def poison(self):
        """As at the start."""
        self.buffer.view(torch.uint8).copy_(self._before)

    def untouched(self):
        return torch.equal(self.buffer.view(torch.uint8), self._before)

    def guards_intact(self):
        now, then = self.buffer.clone(), self._before.view(self.buffer.dtype)
        torch.as_strided(now, *self._place).copy_(torch.as_strided(then, *self._place))
        return torch.equal(now.view(torch.uint8), self._before)


def _tensors(items):
    for item in items:
        if isinstance(item, (torch.Tensor, np.ndarray)):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors(item)


@contextmanager
def unchanged(*items):
    """The tensors among `items`, lists looked into, hold the same bytes afterwards."""
    tensors = list(_tensors(items))
    before = [raw(tensor).copy() for tensor in tensors]
    yield
    for tensor, bytes_before in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(raw(tensor), bytes_before)


def run(function, *args, shape, device, dtype="float16", order="row", **options):
    """Calls with a guarded out, checks all that must not change, returns the float32 values."""
    out = Guarded(shape, dtype, device, order)
    with unchanged(args, list(options.values())):
        result = function(*args, out=out.tensor, **options)
    assert result is out.tensor
    assert out.guards_intact()
    return values(out.tensor)


def assert_ok(verdict, *context):
    assert verdict.ok, (str(verdict), *context)


def assert_right(got, expected, dtype, exact, *context):
    """To the bit where sums are exact, else within the bound."""
    if exact:
        assert_ok(reference.check_bits(got, expected.rounded(dtype)), *context)
    else:
        assert_ok(reference.check(got, expected, dtype), *context)


def hostile(rng, dtype, rows=40, k=256):
    """Every exponent of the format, zeros of both signs, denormals, ties, infinities and NaN."""
    low, high = {"float16": (-24, 16), "bfloat16": (-133, 128), "float32": (-149, 128)}[dtype]
    exponent = rng.integers(low, high, (rows, k // 16, 1)) + rng.integers(
        -3, 2, (rows, k // 16, 16)
    )
    mantissa = rng.integers(8, 16, exponent.shape) / 8  # coarse: many ties
    x = np.ldexp(rng.choice([-1, 1], exponent.shape) * mantissa, exponent).reshape(rows, k)
    x = reference.round_to(x, dtype)
    x[np.isinf(x)] = 1
    x[rng.random(x.shape) < 0.1] = 0.0
    x[rng.random(x.shape) < 0.1] = -0.0
    x[0, :32] = 0
    x[1, 3], x[1, 20], x[1, 37], x[1, 40] = np.nan, np.inf, -np.inf, np.nan
    x[2, 5] = -np.inf
    return x
