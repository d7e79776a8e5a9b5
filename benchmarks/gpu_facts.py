"""What the driver says of a GPU that plans know of it."""

import ctypes

from nvfp4kern.bench import driver

PTX = ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n"
ATTRIBUTES = {"sms": 16, "smem_per_cta": 97, "smem_per_sm": 81}
MAJOR = 75
DYNAMIC_SMEM, CLUSTER_DIMENSION, INVALID_CLUSTER = 8, 4, 912
RESERVED = 1024
SIZES, WARPS = 9, 16


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_uint64), ("value", ctypes.c_uint32 * 16)]


def _attribute(number):
    value = ctypes.c_int()
    result = driver.library().cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    driver.check(result, "cuDeviceGetAttribute")
    return value.value


def _clusters(kernel, per_sm, size, smem):
    """As many of `size` CTAs as the GPU has room for at once."""
    cuda, found = driver.library(), ctypes.c_int()
    attribute = Attribute(CLUSTER_DIMENSION)
    attribute.value[:3] = 1, size, 1
    config = driver.config(1, 32 * WARPS // per_sm)
    config.grid[:] = 1, size, 1
    config.shared_bytes, config.attribute_count = smem, 1
    config.attributes = ctypes.addressof(attribute)
    cuda.cuKernelSetAttribute(DYNAMIC_SMEM, smem, kernel, 0)
    result = cuda.cuOccupancyMaxActiveClusters(ctypes.byref(found), kernel, ctypes.byref(config))
    if result == INVALID_CLUSTER:
        return 0
    driver.check(result, "cuOccupancyMaxActiveClusters")
    return found.value


def facts():
    """SMs, shared memory, and clusters[CTAs of an SM - 1][size], as sm90/gemv counts them."""
    driver.check(driver.library().cuInit(0), "cuInit")
    found = {name: _attribute(number) for name, number in ATTRIBUTES.items()}
    if _attribute(MAJOR) < 9:
        return found | {"clusters": [[0] * SIZES] * 2}
    kernel, clusters = driver.load(PTX, "empty"), []
    for per_sm in (1, 2):
        ctas = found["sms"] * per_sm
        smem = min(found["smem_per_sm"] // per_sm - RESERVED, found["smem_per_cta"])
        counts = [0] * SIZES
        counts[1] = ctas
        for size in range(2, SIZES, 2):
            counts[size] = min(_clusters(kernel, per_sm, size, smem), ctas // size)
        clusters.append(counts)
    return found | {"clusters": clusters}
