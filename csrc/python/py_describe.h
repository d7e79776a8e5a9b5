/* Describes a DLTensor as an nk_tensor: dtype, device, dimensions and strides. */
#ifndef NK_PY_DESCRIBE_H
#define NK_PY_DESCRIBE_H

#include "py_state.h"

/* Fills *t, whose name and index are set already. `flags` are those of a DLManagedTensorVersioned. */
int py_describe(py_call *call, const DLTensor *dl, uint64_t flags, nk_tensor *t);

/* Gives dimensions of extent 1, and all dimensions of an empty tensor, the strides of a compact tensor: those that
 * exporters give are unused. */
void py_tidy_strides(nk_tensor *t);

const char *py_dtype_name_of(const nk_tensor *t); /* also of one that no operator takes */
const char *py_dtype_name(nk_dtype dtype);
DLDataType py_dtype_to_dlpack(nk_dtype dtype);

/* The dtype of that name in *dtype; raises a TypeError for *t where there is none. */
int py_dtype_named(const nk_tensor *t, const char *name, DLDataType *dtype);

#endif
