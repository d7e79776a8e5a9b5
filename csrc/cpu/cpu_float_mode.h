/* The floating-point mode of a run: round-to-nearest with denormals, which frameworks switch off per thread. */
#ifndef NK_CPU_FLOAT_MODE_H
#define NK_CPU_FLOAT_MODE_H

#ifdef __SSE2__ /* takes a tenth of the time of <fenv.h>, which also saves the x87 unit */
#include <xmmintrin.h>

typedef unsigned cpu_float_mode;
static inline cpu_float_mode cpu_enter_default_mode(void)
{
    cpu_float_mode callers = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return callers;
}
static inline void cpu_leave_default_mode(cpu_float_mode callers) { _mm_setcsr(callers); }
#else
#include <fenv.h>

typedef fenv_t cpu_float_mode;
static inline cpu_float_mode cpu_enter_default_mode(void)
{
    cpu_float_mode callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}
static inline void cpu_leave_default_mode(cpu_float_mode callers) { fesetenv(&callers); }
#endif

#endif
