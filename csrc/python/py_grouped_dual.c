/* Binds grouped_dual_gemm. */
#include "py_experts.h"
#include "py_output.h"
#include "py_read.h"

#include <py_operators.h>

PY_ADAPT(grouped_dual_gemm)
PY_EXPERTS_ARE_LAST(GROUPED_DUAL_GEMM);

int py_run_grouped_dual_gemm(py_call *call, PyObject *const *v, PyObject **result)
{
    nk_grouped_dual_gemm_args args;
    nk_tensor t[PY_MAX_TENSORS];
    const py_experts experts = {spec_grouped_dual_gemm, run_grouped_dual_gemm, &args, &args.out,
                                &args.out_dtype,        &args.encoding};
    if (py_read(call, v, &args, t) < 0) return -1;
    return py_finish_experts(call, v + PY_GROUPED_DUAL_GEMM_OUT, &experts, result);
}
