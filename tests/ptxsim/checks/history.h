/* What a byte of shared memory went through, kept for words where their four bytes went through the same, and bits for
 * each byte. */
#ifndef PTXSIM_HISTORY_H
#define PTXSIM_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Epochs (shadow.c) of what came last; updated: by atomics, which do not race with one another. */
typedef struct history {
    uint32_t written, updated, read;
} history;

#define HISTORY_APART UINT32_MAX /* written, of a word whose bytes have histories of their own */

typedef struct histories {
    uint32_t n_words;
    history *words, *bytes; /* bytes: once a word is apart */
} histories;

static inline void sim_histories_open(histories *all, uint32_t bytes)
{
    all->n_words = bytes / 4 + 1;
    all->words = calloc(all->n_words, sizeof *all->words);
}

static inline void sim_histories_close(histories *all)
{
    free(all->words);
    free(all->bytes);
}

/* Of *step bytes from byte i on, at least one of them before `end`: the whole word, or one byte. */
static inline history *sim_history(histories *all, uint32_t i, uint32_t end, uint32_t *step)
{
    history *word = &all->words[i / 4];
    bool whole = i % 4 == 0 && end - i >= 4;
    *step = whole ? 4 : 1;
    if (whole && word->written != HISTORY_APART) return word;
    if (!all->bytes) all->bytes = malloc(4 * sizeof *all->bytes * all->n_words);
    *step = 1;
    if (word->written != HISTORY_APART) {
        for (uint32_t k = 0; k < 4; k++)
            all->bytes[i / 4 * 4 + k] = *word;
        word->written = HISTORY_APART;
    }
    return &all->bytes[i];
}

/* The bytes of a word have the same history again: that of byte i. */
static inline void sim_history_join(histories *all, uint32_t i) { all->words[i / 4] = all->bytes[i]; }

/* ---- bits, one a byte of memory, at most 32 at a time; 8 bytes more than there are bits for ------------------- */

static inline uint32_t sim_low_bits(uint32_t n) { return n >= 32 ? UINT32_MAX : (1u << n) - 1; }

static inline uint32_t sim_bits(const uint8_t *bits, uint32_t from, uint32_t n)
{
    uint64_t word;
    memcpy(&word, bits + from / 8, sizeof word);
    return (uint32_t)(word >> from % 8) & sim_low_bits(n);
}

static inline void sim_put_bits(uint8_t *bits, uint32_t from, uint32_t n, bool on)
{
    uint64_t word, mask = (uint64_t)sim_low_bits(n) << from % 8;
    memcpy(&word, bits + from / 8, sizeof word);
    word = on ? word | mask : word & ~mask;
    memcpy(bits + from / 8, &word, sizeof word);
}

#endif
