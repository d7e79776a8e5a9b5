"""A kernel that reads and does nothing else: what an operator's bytes cost without its arithmetic.

Its buffers follow one another as one sequence of chunks, dealt out to the warps of all SMs in turn,
so that a small one (scales, a vector) costs no wait of its own. A lane has LOADS independent loads
in flight; their exclusive or is stored where an address for it is given, which the compiler cannot
know: nothing is left out.
"""

import ctypes
from functools import cache, partial

import torch

from . import driver

BUFFERS = 6
"""As many as one launch can read: a dual GEMM's operands and scales."""

LOADS, THREADS, WORD = 8, 512, 16
CHUNK = 32 * LOADS
"""Words of a chunk, one for each load of each lane of a warp."""

GRIDS = (1, 2, 4)
"""CTAs per SM to try: which of them reads fastest depends on how much there is to read."""


class Parameters(ctypes.Structure):
    """For each buffer its address less the bytes of the chunks before it; the chunk that comes
    after it; the word after its last, counted through all chunks. Where to put the exclusive or,
    or 0."""

    _fields_ = [
        ("bases", ctypes.c_uint64 * BUFFERS),
        ("result", ctypes.c_uint64),
        ("next_chunks", ctypes.c_uint32 * BUFFERS),
        ("ends", ctypes.c_uint32 * BUFFERS),
    ]


def _field(name, index=0):
    """Where the kernel finds it."""
    field = getattr(Parameters, name)
    return f"[given + {field.offset + index * field.size // BUFFERS}]"


def _parameter_loads():
    for b in range(BUFFERS):
        yield f"ld.param.u64 %base{b}, {_field('bases', b)};"
        yield f"ld.param.u32 %next{b}, {_field('next_chunks', b)};"
        yield f"ld.param.u32 %end{b}, {_field('ends', b)};"
    yield f"ld.param.u64 %result, {_field('result')};"


def _chunk():
    """Which buffer the chunk is in, then all loads of this lane, then what they gave."""
    yield "mov.u64 %address, %base0;"
    yield "mov.u32 %end, %end0;"
    for b in range(1, BUFFERS):
        yield f"setp.ge.u32 %later, %chunk, %next{b - 1};"
        yield f"selp.u64 %address, %base{b}, %address, %later;"
        yield f"selp.u32 %end, %end{b}, %end, %later;"
    yield f"mad.lo.u32 %word, %chunk, {CHUNK}, %lane;"
    yield f"mad.wide.u32 %address, %word, {WORD}, %address;"
    yield "sub.s32 %left, %end, %word;"
    for j in range(LOADS):
        values = [f"%v{4 * j + w}" for w in range(4)]
        yield f"setp.gt.s32 %inside, %left, {32 * j};"
        yield from (f"mov.u32 {value}, 0;" for value in values)
        where = f"{{{', '.join(values)}}}, [%address + {32 * j * WORD}]"
        yield f"@%inside ld.global.nc.L1::no_allocate.v4.u32 {where};"
    yield from (f"xor.b32 %sum, %sum, %v{i};" for i in range(4 * LOADS))


def ptx():
    """As text; eviction hints of loads are of PTX 7.4."""
    newline = "\n    "
    return f"""
.version 7.4
.target sm_80
.address_size 64
.visible .entry read_all(.param .align 8 .b8 given[{ctypes.sizeof(Parameters)}])
.maxntid {THREADS}, 1, 1
.minnctapersm 2
{{
    .reg .pred %later, %inside, %done, %wanted;
    .reg .u32 %thread, %lane, %warp, %cta, %ctas, %chunk, %step, %word, %end, %sum;
    .reg .s32 %left;
    .reg .u32 %v<{4 * LOADS}>, %next<{BUFFERS}>, %end<{BUFFERS}>;
    .reg .u64 %base<{BUFFERS}>, %address, %result;
    {newline.join(_parameter_loads())}
    mov.u32 %thread, %tid.x;
    mov.u32 %cta, %ctaid.x;
    mov.u32 %ctas, %nctaid.x;
    and.b32 %lane, %thread, 31;
    shr.u32 %warp, %thread, 5;
    mad.lo.u32 %chunk, %warp, %ctas, %cta;
    mul.lo.u32 %step, %ctas, {THREADS // 32};
    mov.u32 %sum, 0;
more:
    setp.ge.u32 %done, %chunk, %next{BUFFERS - 1};
    @%done bra finish;
    {newline.join(_chunk())}
    add.u32 %chunk, %chunk, %step;
    bra more;
finish:
    setp.ne.u64 %wanted, %result, 0;
    @%wanted red.global.xor.b32 [%result], %sum;
    ret;
}}
"""


@cache
def _kernel():
    return driver.load(ptx(), "read_all")


def _parameters(buffers):
    """Whole words only: up to 15 bytes at a buffer's end stay unread."""
    if not 0 < len(buffers) <= BUFFERS:
        raise ValueError(f"buffers: {len(buffers)}, expected 1 to {BUFFERS}")
    made, chunks, end = Parameters(), 0, 0
    for b in range(BUFFERS):
        if b < len(buffers):
            address, words = buffers[b].data_ptr(), buffers[b].nbytes // WORD
            if address % WORD or not buffers[b].is_contiguous():
                raise ValueError(f"buffers[{b}]: expected contiguous, aligned to {WORD} bytes")
            made.bases[b] = (address - WORD * CHUNK * chunks) % 2**64
            end = CHUNK * chunks + words
            chunks += -(-words // CHUNK)
        made.next_chunks[b], made.ends[b] = chunks, end
    return made


def _xor(buffer):
    """The exclusive or of a buffer's 4-byte words, by torch."""
    words = buffer.reshape(-1).view(torch.uint8)[: buffer.nbytes // WORD * WORD].view(torch.int32)
    while words.numel() > 1:
        half = words.numel() // 2
        left = words[2 * half :]
        words = words[:half] ^ words[half : 2 * half]
        words[: left.numel()] ^= left
    return words


def read_kernel(buffers, ctas_per_sm=2):
    """A call that reads `buffers`, contiguous CUDA tensors, in one launch.

    RuntimeError where the kernel's exclusive or of them is not torch's.
    """
    grid = ctas_per_sm * torch.cuda.get_device_properties(0).multi_processor_count
    given = _parameters(buffers)
    result = torch.zeros(1, dtype=torch.int32, device="cuda")
    given.result = result.data_ptr()
    driver.launch(_kernel(), grid, THREADS, given)
    want = torch.zeros_like(result)
    for buffer in buffers:
        if buffer.nbytes >= WORD:
            want ^= _xor(buffer)
    if result.item() != want.item():
        raise RuntimeError("the reading kernel did not read all of its buffers")
    given.result = 0
    call = partial(driver.launch, _kernel(), grid, THREADS, given)
    call.buffers = buffers  # alive as long as the call
    return call
