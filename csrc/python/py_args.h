/* Converts Python arguments to C values: numbers, words, dtypes, layouts, tuples.
 *
 * `object` is NULL where the argument was not given: *value then keeps its default. Every message begins with the
 * argument's name. */
#ifndef NK_PY_ARGS_H
#define NK_PY_ARGS_H

#include "py_state.h"

/* Raises TypeError "<name>: <type>, expected <expected>". Returns -1. */
int py_wrong_type(PyObject *object, const char *name, int32_t index, const char *expected);

int py_int(PyObject *object, const char *name, int64_t *value);
int py_count_or_none(PyObject *object, const char *name, int64_t *value); /* not below 0; None counts as not given */
int py_bool(PyObject *object, const char *name, bool *value); /* True or False alone, not every true object */
int py_bool_or_none(PyObject *object, const char *name, bool *value, bool *is_none);

/* A number that overflows float32 is refused; infinity and NaN are not. */
int py_float(PyObject *object, const char *name, int32_t index, float *value);

/* The text of a str, or "" where that has a NUL: no word has. NULL with an exception set. */
const char *py_text(PyObject *object);

/* *choice becomes the index of the word in `words`, which ends with NULL. */
int py_word(PyObject *object, const char *name, const char *const *words, int *choice);
int py_out_dtype(PyObject *object, nk_dtype *dtype);  /* of floats; None counts as not given */
int py_data_dtype(PyObject *object, nk_dtype *dtype); /* of codes; the same */
int py_scale_layout(PyObject *object, nk_sf_layout *layout);                  /* one word */
int py_scale_layouts(PyObject *object, nk_sf_layout *sfa, nk_sf_layout *sfb); /* one word or a pair */

/* Returns a list or tuple as a tuple that lives as long as the call (borrowed), or NULL with an exception set. It must
 * have `count` items, or any number of them where `count` is negative. `expected` says in words what they are. */
PyObject *py_items(py_call *call, PyObject *object, const char *name, Py_ssize_t count, const char *expected);

#endif
