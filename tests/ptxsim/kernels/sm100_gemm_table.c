/* Prints what sm100_gemm_config.cuh says, for the test: lines of a variant (or "facts"), a name, a number. */
#include "sm100_gemm_config.cuh"

#include <stdio.h>

static void say(const char *row, const char *name, int value) { printf("%s %s %d\n", row, name, value); }

static void variant(const char *row, int ctas, int groups, int share, int n, int schedule)
{
    say(row, "smem", SMEM_BYTES(ctas, n));
    say(row, "stage", STAGE_BYTES(ctas, n));
    say(row, "cluster", ctas * groups);
    say(row, "rows", CLUSTER_ROWS(ctas, groups, share));
    say(row, "columns", CLUSTER_COLUMNS(groups, share, n));
    say(row, "n", n);
    say(row, "a_rows", TILE_M / A_PARTS(groups, share));
    say(row, "b_rows", n / ctas / B_PARTS(groups, share));
    say(row, "sfa_atoms", BLOCKS / A_PARTS(groups, share));
    say(row, "sfb_atoms", BLOCKS / SFB_PARTS(ctas, groups, share));
    say(row, "clc", schedule == CLC);
}

#define ROW(name, ctas, groups, share, n, schedule) variant(#name, ctas, groups, share, n, schedule);

int main(void)
{
    SM100_GEMM_VARIANTS(ROW)
    say("facts", "threads", THREADS);
    say("facts", "tile_k", TILE_K);
    say("facts", "box_columns", BOX_COLUMNS);
    say("facts", "stages", STAGES);
    say("facts", "accumulators", ACCUMULATORS);
    return 0;
}
