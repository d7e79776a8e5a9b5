/* Functions between the GPUs of a group, which nvfp4kern.distributed calls. */
#ifndef NK_PY_PEER_H
#define NK_PY_PEER_H

#include "py_invoke.h"

extern const py_operator py__peer_reduce, py__peer_dispatch, py__peer_combine;

#endif
