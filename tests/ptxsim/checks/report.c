/* Collects findings, counts them by place, and hands them out as JSON. */
#include "report.h"

#include "parse/ptx.h"
#include "scopes.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct finding {
    char severity, code[32], kernel[128], source[256], text[512];
    uint32_t line, cta[3], warp, launch;
    int lane;
    uint64_t count, seed;
} finding;

#define MAX_FINDINGS 1000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static finding *findings;
static uint32_t n_findings;
static stats totals;
static uint64_t launches, overlapping;
static _Thread_local char last_error[1200];

const char *sim_last_error(void) { return last_error; }
void sim_set_last_error(const char *text) { snprintf(last_error, sizeof last_error, "%s", text); }

static const char *file_name(const module *m, uint32_t index)
{
    const char *path = index < sizeof m->files / sizeof m->files[0] && m->files[index] ? m->files[index] : "?";
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void sim_source_place(const program *p, const insn *in, char *to, size_t size)
{
    const source_loc *at = &p->locs[in->loc];
    *to = 0;
    if (!at->file) return;
    int n = snprintf(to, size, "%s:%u", file_name(p->module, at->file), at->line);
    if (at->at_file && n > 0 && (size_t)n < size)
        snprintf(to + n, size - (size_t)n, ", inlined at %s:%u", file_name(p->module, at->at_file), at->at_line);
}

static finding *same_place(const run *r, uint32_t line, char severity, const char *code)
{
    for (uint32_t i = 0; i < n_findings; i++) {
        finding *f = &findings[i];
        if (f->line == line && f->severity == severity && strcmp(f->code, code) == 0 &&
            strncmp(f->kernel, r->program->name, sizeof f->kernel - 1) == 0)
            return f;
    }
    return NULL;
}

static bool counted(const run *r, uint32_t line, char severity, const char *code)
{
    pthread_mutex_lock(&lock);
    finding *known = same_place(r, line, severity, code);
    if (known) known->count++;
    pthread_mutex_unlock(&lock);
    return known;
}

static void keep(const run *r, const finding *f)
{
    pthread_mutex_lock(&lock);
    finding *known = same_place(r, f->line, f->severity, f->code);
    if (known) {
        known->count++;
    } else if (n_findings < MAX_FINDINGS) {
        if (n_findings % 64 == 0) findings = realloc(findings, (n_findings + 64) * sizeof *findings);
        findings[n_findings++] = *f;
    }
    pthread_mutex_unlock(&lock);
}

static void fail_launch(const run *r, const finding *f)
{
    char error[1200];
    if (__atomic_exchange_n(&r->launch->failed, 1, __ATOMIC_ACQ_REL)) return;
    snprintf(error, sizeof error,
             "ptxsim: %s in %s, PTX line %u (%s), CTA %u,%u,%u, warp %u, lane %d, seed %llu, launch %u: %s", f->code,
             f->kernel, f->line, f->source, f->cta[0], f->cta[1], f->cta[2], f->warp, f->lane,
             (unsigned long long)f->seed, f->launch, f->text);
    pthread_mutex_lock(&lock);
    snprintf(r->launch->error, sizeof r->launch->error, "%s", error);
    pthread_mutex_unlock(&lock);
}

void sim_report(run *r, const insn *in, char severity, const char *code, int lane, const char *format, ...)
{
    if (severity != 'E' && counted(r, in ? in->line : 0, severity, code)) return; /* its text is the first one's */
    finding f = {.severity = severity, .lane = lane, .count = 1, .seed = sim_config.seed, .launch = r->launch->number};
    va_list values;
    va_start(values, format);
    vsnprintf(f.text, sizeof f.text, format, values);
    va_end(values);
    snprintf(f.code, sizeof f.code, "%s", code);
    snprintf(f.kernel, sizeof f.kernel, "%s", r->program->name);
    if (in) {
        f.line = in->line;
        sim_source_place(r->program, in, f.source, sizeof f.source);
    }
    if (r->cta) memcpy(f.cta, r->cta->id, sizeof f.cta);
    f.warp = r->warp ? r->warp->index : 0;
    keep(r, &f);
    if (severity == 'E') fail_launch(r, &f);
}

void sim_report_launch(const launch *l)
{
    const uint64_t *from = (const void *)&l->stats;
    uint64_t *to = (void *)&totals;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof totals / sizeof *to; i++)
        to[i] += from[i];
    launches++;
    overlapping += l->overlaps;
    pthread_mutex_unlock(&lock);
    sim_scopes_keep(l);
}

void sim_report_clear(void)
{
    sim_scopes_clear();
    pthread_mutex_lock(&lock);
    n_findings = 0;
    totals = (stats){0};
    launches = overlapping = 0;
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* JSON                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

static void add_string(FILE *to, const char *name, const char *text)
{
    fprintf(to, "\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", to);
        else if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else
            fputc((unsigned char)*text < 32 ? ' ' : *text, to);
    }
    fputs("\", ", to);
}

static void add_finding(FILE *to, const finding *f)
{
    char severity[2] = {f->severity, 0};
    fputc('{', to);
    add_string(to, "severity", severity);
    add_string(to, "code", f->code);
    add_string(to, "kernel", f->kernel);
    add_string(to, "source", f->source);
    add_string(to, "text", f->text);
    fprintf(to,
            "\"line\": %u, \"cta\": [%u, %u, %u], \"warp\": %u, \"lane\": %d, \"count\": %llu, \"seed\": %llu, "
            "\"launch\": %u}",
            f->line, f->cta[0], f->cta[1], f->cta[2], f->warp, f->lane, (unsigned long long)f->count,
            (unsigned long long)f->seed, f->launch);
}

size_t sim_report_json(char *to, size_t size)
{
    static const char *const names[] = {"warp_instructions",
                                        "lane_instructions",
                                        "global_loads",
                                        "global_load_bytes",
                                        "global_stores",
                                        "global_store_bytes",
                                        "mmas",
                                        "barriers",
                                        "async_bytes",
                                        "ctas",
                                        "tma_bytes",
                                        "l2_read_bytes",
                                        "l2_write_bytes",
                                        "touched_bytes",
                                        "shared_wavefronts",
                                        "data_waits"};
    static const char *const states[] = {"ready", "gang", "barrier", "cluster", "mbarrier", "async"};
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    pthread_mutex_lock(&lock);
    fprintf(file, "{\"launches\": %llu, \"overlapping_launches\": %llu", (unsigned long long)launches,
            (unsigned long long)overlapping);
    const uint64_t *values = (const void *)&totals;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(file, ", \"%s\": %llu", names[i], (unsigned long long)values[i]);
    double waits = totals.data_waits ? (double)totals.data_waits : 1;
    fprintf(file, ", \"stages_under_way\": %.3f, \"warps\": {", (double)totals.stages / waits);
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        fprintf(file, "%s\"%s\": %llu", i ? ", " : "", states[i], (unsigned long long)totals.samples[i]);
    fputs("}, \"mbarrier_waits\": [", file);
    for (uint32_t i = 0; i < MAX_WARPS; i++)
        fprintf(file, "%s%llu", i ? ", " : "", (unsigned long long)totals.slept[i]);
    fputs("], \"scopes\": ", file);
    sim_scopes_json(file);
    fputs(", \"findings\": [", file);
    for (uint32_t i = 0; i < n_findings; i++) {
        if (i) fputs(", ", file);
        add_finding(file, &findings[i]);
    }
    fputs("]}", file);
    pthread_mutex_unlock(&lock);
    fclose(file);
    if (to && size) snprintf(to, size, "%s", text);
    free(text);
    return length + 1;
}
