/* Converts Python arguments to numbers, words, dtypes, layouts and tuples. */
#include "py_args.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------------- */
/* Numbers                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

int py_wrong_type(PyObject *object, const char *name, int32_t index, const char *expected)
{
    PyObject *type = PyType_GetName(Py_TYPE(object));
    if (!type) return -1;
    py_fail_at(PyExc_TypeError, name, index, "%U, expected %s", type, expected);
    Py_DECREF(type);
    return -1;
}

/* Clears an exception that the conversion of an object raised, since it does not name the argument. */
static bool raised_by_value(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
    PyErr_Clear();
    return true;
}

static int not_converted(PyObject *object, const char *name, int32_t index, const char *expected)
{
    return raised_by_value() ? py_wrong_type(object, name, index, expected) : -1;
}

int py_int(PyObject *object, const char *name, int64_t *value)
{
    if (!object) return 0;
    int overflow = 0; /* __index__ that raises leaves it alone */
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow) return py_fail_at(PyExc_ValueError, name, -1, "%R does not fit 64 bits", object);
    return *value == -1 && PyErr_Occurred() ? not_converted(object, name, -1, "an int") : 0;
}

int py_count_or_none(PyObject *object, const char *name, int64_t *value)
{
    if (!object || object == Py_None) return 0;
    if (py_int(object, name, value) < 0) return -1;
    return *value < 0 ? py_fail_at(PyExc_ValueError, name, -1, "%lld, expected 0 or more", (long long)*value) : 0;
}

int py_bool(PyObject *object, const char *name, bool *value)
{
    if (!object) return 0;
    if (object != Py_True && object != Py_False) return py_wrong_type(object, name, -1, "True or False");
    *value = object == Py_True;
    return 0;
}

int py_bool_or_none(PyObject *object, const char *name, bool *value, bool *is_none)
{
    *is_none = !object || object == Py_None;
    if (*is_none) return 0;
    if (object != Py_True && object != Py_False) return py_wrong_type(object, name, -1, "True, False or None");
    *value = object == Py_True;
    return 0;
}

/* Halfway from FLT_MAX to 2^128: from this number on, rounding to fp32 gives infinity. */
#define FLOAT_OVERFLOW 0x1.ffffffp127

/* (float)number to nearest even, in integers: the caller's thread may round otherwise, or flush denormals. */
static float to_float(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7ff) - (DBL_MAX_EXP - FLT_MAX_EXP); /* biased; a denormal's is below 1 */
    const int dropped = DBL_MANT_DIG - FLT_MANT_DIG + (exponent < 1 ? 1 - exponent : 0);
    uint32_t result = 0; /* also for less than half of the least denormal */
    float value;
    if (!isfinite(number)) return (float)number;
    if (dropped <= DBL_MANT_DIG) {
        const uint64_t mantissa = (bits & 0xfffffffffffff) | 0x10000000000000, half = (uint64_t)1 << (dropped - 1);
        const uint64_t rest = mantissa & (2 * half - 1);
        result = (uint32_t)(mantissa >> dropped);
        if (rest > half || (rest == half && result % 2)) result++;
        if (exponent > 1) result += (uint32_t)(exponent - 1) << 23; /* the leading bit adds one */
    }
    result |= (uint32_t)(bits >> 63) << 31;
    memcpy(&value, &result, sizeof value);
    return value;
}

/* NumPy's bool and complex scalars convert to float, too. */
static bool is_bool_or_complex(PyObject *object)
{
    if (PyFloat_Check(object)) return false;
    if (PyBool_Check(object) || PyComplex_Check(object)) return true;
    if (PyLong_Check(object)) return false;
    PyObject *dtype = PyObject_GetAttrString(object, "dtype");
    PyObject *kind = dtype ? PyObject_GetAttrString(dtype, "kind") : NULL;
    bool found = kind && PyUnicode_Check(kind) &&
                 (PyUnicode_CompareWithASCIIString(kind, "b") == 0 || PyUnicode_CompareWithASCIIString(kind, "c") == 0);
    Py_XDECREF(kind);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return found;
}

int py_float(PyObject *object, const char *name, int32_t index, float *value)
{
    if (!object) return 0;
    if (!PyNumber_Check(object) || is_bool_or_complex(object)) {
        return py_wrong_type(object, name, index, "a number");
    }
    double number = PyFloat_AsDouble(object);
    bool too_big = isfinite(number) && fabs(number) >= FLOAT_OVERFLOW;
    if (number == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return not_converted(object, name, index, "a number");
        PyErr_Clear();
        too_big = true;
    }
    if (too_big) return py_fail_at(PyExc_ValueError, name, index, "a finite number that overflows float32");
    *value = to_float(number);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Words                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* `typed`: the object may be of another type than that of words. */
static int unknown_word(PyObject *object, const char *name, const char *const *words, bool typed)
{
    char valid[256] = "";
    for (int i = 0; words[i]; i++) {
        size_t at = strlen(valid);
        const char *before = i == 0 ? "" : words[i + 1] ? ", " : " or ";
        PyOS_snprintf(valid + at, sizeof valid - at, "%s'%s'", before, words[i]);
    }
    if (!typed && !PyUnicode_Check(object)) return py_wrong_type(object, name, -1, valid);
    return py_fail_at(PyExc_ValueError, name, -1, "%R, expected %s", object, valid);
}

static int find_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) return i;
    }
    return -1;
}

const char *py_text(PyObject *object)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    return text && strlen(text) != (size_t)size ? "" : text;
}

int py_word(PyObject *object, const char *name, const char *const *words, int *choice)
{
    if (!object) return 0;
    const char *text = py_text(object); /* raises for another type, too */
    if (!text && !raised_by_value()) return -1;
    *choice = text ? find_word(text, words) : -1;
    return *choice < 0 ? unknown_word(object, name, words, false) : 0;
}

/* "float16", np.float16 (by its __name__), np.dtype("float16") or torch.float16 (by the last part of its str). */
static int dtype_word(PyObject *object, const char *name, const char *const *words, const nk_dtype *dtypes,
                      nk_dtype *dtype)
{
    PyObject *word = NULL;
    const char *text;
    int choice = -1, failed = -1;
    if (!object || object == Py_None) return 0;
    if (PyUnicode_Check(object))
        word = Py_NewRef(object);
    else if (PyType_Check(object))
        word = PyObject_GetAttrString(object, "__name__");
    else
        word = PyObject_Str(object);
    text = word ? py_text(word) : NULL;
    if (text) {
        const char *dot = PyUnicode_Check(object) ? NULL : strrchr(text, '.');
        choice = find_word(dot ? dot + 1 : text, words);
    } else if (!raised_by_value()) {
        goto done;
    }
    if (choice < 0) {
        unknown_word(object, name, words, true);
        goto done;
    }
    *dtype = dtypes[choice];
    failed = 0;
done:
    Py_XDECREF(word);
    return failed;
}

int py_out_dtype(PyObject *object, nk_dtype *dtype)
{
    static const char *const words[] = {"float16", "bfloat16", "float32", NULL};
    static const nk_dtype dtypes[] = {NK_F16, NK_BF16, NK_F32};
    return dtype_word(object, "out_dtype", words, dtypes, dtype);
}

int py_data_dtype(PyObject *object, nk_dtype *dtype)
{
    static const char *const words[] = {"float4_e2m1fn_x2", "uint8", NULL};
    static const nk_dtype dtypes[] = {NK_E2M1X2, NK_U8};
    return dtype_word(object, "data_dtype", words, dtypes, dtype);
}

int py_scale_layout(PyObject *object, nk_sf_layout *layout)
{
    static const char *const words[] = {[NK_SF_LINEAR] = "linear", [NK_SF_BLOCKED] = "blocked", NULL};
    int choice = NK_SF_LINEAR;
    if (object == Py_None) object = NULL; /* not given */
    if (py_word(object, "scale_layout", words, &choice) < 0) return -1;
    *layout = (nk_sf_layout)choice;
    return 0;
}

int py_scale_layouts(PyObject *object, nk_sf_layout *sfa, nk_sf_layout *sfb)
{
    if (!object || object == Py_None || PyUnicode_Check(object)) {
        if (py_scale_layout(object, sfa) < 0) return -1;
        *sfb = *sfa;
        return 0;
    }
    if (!PyTuple_Check(object) && !PyList_Check(object)) {
        return py_wrong_type(object, "scale_layout", -1, "'linear', 'blocked' or a pair of them for (sfa, sfb)");
    }
    Py_ssize_t count = PySequence_Size(object);
    if (count != 2) {
        return py_fail_at(PyExc_ValueError, "scale_layout", -1, "%zd items, expected a pair for (sfa, sfb)", count);
    }
    nk_sf_layout *layouts[] = {sfa, sfb};
    for (int i = 0; i < 2; i++) {
        PyObject *word = PySequence_GetItem(object, i);
        int failed = word ? py_scale_layout(word, layouts[i]) : -1;
        Py_XDECREF(word);
        if (failed) return -1;
    }
    return 0;
}

PyObject *py_items(py_call *call, PyObject *object, const char *name, Py_ssize_t count, const char *expected)
{
    PyObject *tuple = object;
    if (!PyTuple_CheckExact(object) && PyList_Check(object)) {
        /* The call keeps a copy: another thread may change the list while the GIL is released. */
        tuple = PyList_AsTuple(object);
        if (!tuple || py_keep(call, tuple) < 0) return NULL;
    } else if (!PyTuple_CheckExact(object) && !PyTuple_Check(object)) {
        py_wrong_type(object, name, -1, expected);
        return NULL;
    }
    Py_ssize_t size = PyTuple_Size(tuple);
    if (count >= 0 && size != count) {
        py_fail_at(PyExc_ValueError, name, -1, "%zd items, expected %zd: %s", size, count, expected);
        return NULL;
    }
    return tuple;
}
