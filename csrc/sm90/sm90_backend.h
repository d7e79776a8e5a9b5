/* The sm90 row: Hopper. Problems that it does not take go on to the sm80 row. */
#ifndef NK_SM90_BACKEND_H
#define NK_SM90_BACKEND_H

#include "../backend.h"
#include "../cuda/cuda_launch.h"

/* Programmatic dependent launch: a kernel may be scheduled while the one before it in the stream still runs. By default
 * it then waits before it reads anything, which needs no care from anybody. NVFP4KERN_PDL=0 turns that off;
 * NVFP4KERN_PDL=weights lets it read weights and their scale factors before it waits, on the caller's word that no
 * kernel that may still be running writes them: not the one just before it in the stream, nor one further back where
 * those between overlap likewise. */
typedef enum sm90_pdl { SM90_PDL_OFF, SM90_PDL_SAFE, SM90_PDL_WEIGHTS } sm90_pdl;
sm90_pdl sm90_pdl_wanted(void);

nk_status sm90_plan_gemv(const nk_gemv_problem *p, nk_plan *plan);
nk_status sm90_run_gemv(const nk_gemv_problem *p, const nk_exec *exec);

#endif
