/* What was found: errors end a launch, warnings and notes are counted per place in the program. */
#ifndef PTXSIM_REPORT_H
#define PTXSIM_REPORT_H

#include "sim.h"

/* severity: E W N. lane -1: no lane in particular; in NULL: no instruction. */
void sim_report(run *r, const insn *in, char severity, const char *code, int lane, const char *format, ...);

/* All findings since the last clearing and the counts of all launches as JSON; the bytes that the whole takes. */
size_t sim_report_json(char *to, size_t size);
void sim_report_clear(void);
void sim_report_launch(const launch *l);
const char *sim_last_error(void); /* the text of this thread's last E, empty without one */
void sim_set_last_error(const char *text);

/* "sm80_gemm.cu:31, inlined at sm80_gemm.cu:77" */
void sim_source_place(const program *p, const insn *in, char *to, size_t size);

#endif
