/* Reads the simulator's settings from the environment. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

config sim_config;

static uint64_t number(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* PTXSIM_CC is 8.0, 9.0, 10.0, ..; the limits are those of the GPU of that capability. */
void sim_configure(void)
{
    static const struct {
        int capability, sms, smem_per_cta, smem_per_sm, threads_per_sm;
    } gpus[] = {
        {80, 108, 163 * 1024, 164 * 1024, 2048}, {89, 128, 99 * 1024, 100 * 1024, 1536},
        {90, 132, 227 * 1024, 228 * 1024, 2048}, {100, 148, 227 * 1024, 228 * 1024, 2048},
        {120, 170, 99 * 1024, 100 * 1024, 1536}, {121, 48, 99 * 1024, 100 * 1024, 1536},
    };
    const char *text = getenv("PTXSIM_CC");
    int capability = text && *text ? (int)(10 * strtod(text, NULL) + 0.5) : 90;
    size_t at = 0;
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (gpus[i].capability <= capability) at = i;
    sim_config = (config){
        .capability = capability,
        .sms = (int)number("PTXSIM_SMS", (uint64_t)gpus[at].sms),
        .ctas_per_sm = (int)number("PTXSIM_CTAS_PER_SM", 8),
        .smem_per_cta = (int)number("PTXSIM_SMEM_PER_CTA", (uint64_t)gpus[at].smem_per_cta),
        .smem_per_sm = (int)number("PTXSIM_SMEM_PER_SM", (uint64_t)gpus[at].smem_per_sm),
        .threads_per_sm = gpus[at].threads_per_sm,
        .threads = (int)number("PTXSIM_THREADS", 1),
        .seed = number("PTXSIM_SEED", 0),
        .spin_limit = number("PTXSIM_SPIN_LIMIT", 50000000),
        .check_races = number("PTXSIM_RACES", 1),
        .check_scopes = number("PTXSIM_SCOPES", 0),
        .check_init = number("PTXSIM_UNINITIALISED", 1),
        .tmem_anywhere = number("PTXSIM_TMEM_ANYWHERE", 1),
        .cp_behind_mma = number("PTXSIM_CP_BEHIND_MMA", 1),
        .fenced_stores = number("PTXSIM_FENCED_STORES", 0),
        .zeros_win = !number("PTXSIM_NAN_TIMES_ZERO", 1),
        .count_wavefronts = number("PTXSIM_WAVEFRONTS", 0),
        .launches_to = getenv("PTXSIM_LAUNCHES_TO"),
    };
    if (sim_config.threads < 1) sim_config.threads = 1;
}
