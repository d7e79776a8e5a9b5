"""Tensors of DLPack made by hand: any memory, any strides, any device."""

import ctypes


class Capsule(ctypes.Structure):
    """A DLManagedTensorVersioned with DLTensor inside, which lives as long as its capsule."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]
    NAME = b"dltensor_versioned"

    @classmethod
    def at(cls, address, dtype, shape, strides=None, device_type=1, **fields):
        """`dtype`: code, bits, lanes. Without strides the tensor is contiguous."""
        self = cls(major=1, minor=3, data=address, device_type=device_type, ndim=len(shape))
        self.code, self.bits, self.lanes = dtype
        self.sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.shape = self.sizes
        if strides is not None:
            self.steps = (ctypes.c_int64 * max(len(shape), 1))(*strides)
            self.strides = self.steps
        for name, value in fields.items():
            setattr(self, name, value)
        return self

    @classmethod
    def of(cls, array, *given, **fields):
        """The memory of an array, which lives as long."""
        self = cls.at(array.ctypes.data, *given, **fields)
        self.array = array
        return self

    def __dlpack__(self, **kwargs):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self), self.NAME, None)
