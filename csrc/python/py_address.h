/* Reads tensors by their address, and finds the stream of those that have no exchange API. */
#ifndef NK_PY_ADDRESS_H
#define NK_PY_ADDRESS_H

#include "py_state.h"

/* Without the exchange API, the call runs on the current stream of the first CUDA tensor's framework, and on the legacy
 * default stream where that framework is unknown. */
int py_set_stream(py_call *call, PyObject *object);

/* Describes `object` in *t by `function`, of which py_exporter says more. */
int py_from_address(py_call *call, PyObject *object, PyObject *function, nk_tensor *t);

/* NumPy exports none of ml_dtypes' types: its arrays of these are described in Python. The BufferError that is set
 * stands for all others. */
int py_from_unexported(py_call *call, PyObject *object, nk_tensor *t);

#endif
