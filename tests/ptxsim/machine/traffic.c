/* Counts what L2 sees of accesses to global memory, in sectors of 32 bytes, and wavefronts of shared memory.
 *
 * An instruction of a warp asks for each sector once, however many lanes want it. L1 is left out. A bit for each
 * sector of live memory tells what a launch touches at all. */
#include "traffic.h"

#include <stdlib.h>

#define SECTOR_SHIFT 5

void sim_traffic_open(launch *l)
{
    uint64_t bits = 0;
    l->first_bits = malloc((l->n_extents + 1) * sizeof *l->first_bits);
    for (uint32_t i = 0; i < l->n_extents; i++) {
        uint64_t begin = l->extents[i].begin >> SECTOR_SHIFT, end = (l->extents[i].end - 1) >> SECTOR_SHIFT;
        l->first_bits[i] = bits - begin; /* a sector's number and this is its bit */
        bits += end - begin + 1;
    }
    l->n_touched = bits / 64 + 1;
    l->touched = calloc(l->n_touched, sizeof *l->touched);
}

void sim_traffic_close(launch *l)
{
    uint64_t sectors = 0;
    for (uint64_t i = 0; i < l->n_touched; i++)
        sectors += (uint64_t)__builtin_popcountll(l->touched[i]);
    l->stats.touched_bytes = sectors << SECTOR_SHIFT;
    free(l->touched);
    free(l->first_bits);
}

static void touch(launch *l, uint64_t bit)
{
    uint64_t *word = &l->touched[bit / 64], mask = (uint64_t)1 << bit % 64;
    if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & mask)) __atomic_fetch_or(word, mask, __ATOMIC_RELAXED);
}

static bool asked_before(const sectors *s, uint64_t sector)
{
    uint32_t n = s->n < SECTORS_KEPT ? s->n : SECTORS_KEPT;
    for (uint32_t i = 0; i < n; i++)
        if (s->kept[i] == sector) return true;
    return false;
}

void sim_traffic_anew(run *r)
{
    r->sectors.n = 0;
    r->sectors.since = r->stats.warp_insns;
}

void sim_traffic(run *r, uint64_t address, uint32_t bytes, access how)
{
    sectors *s = &r->sectors;
    if (s->since != r->stats.warp_insns) sim_traffic_anew(r);
    uint64_t last = (address + bytes - 1) >> SECTOR_SHIFT;
    for (uint64_t sector = address >> SECTOR_SHIFT; sector <= last; sector++) {
        if (s->n && (sector == s->newest || (sector <= s->highest && asked_before(s, sector)))) continue;
        s->newest = sector;
        if (!s->n || sector > s->highest) s->highest = sector;
        s->kept[s->n++ % SECTORS_KEPT] = sector;
        *(how == READ ? &r->stats.l2_read_bytes : &r->stats.l2_write_bytes) += 1u << SECTOR_SHIFT;
        touch(r->launch, r->first_bit + sector);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Shared memory                                                                                                    */
/* ---------------------------------------------------------------------------------------------------------------- */

#define BANKS 32 /* of four bytes */

/* How many words of the bank with most of them these lanes want; several may want the same one. */
static uint32_t most_of_a_bank(const run *r, const insn *in, uint32_t lanes, uint32_t bytes)
{
    uint64_t words[BANKS][LANES];
    uint32_t count[BANKS] = {0}, most = 0;
    for (; lanes; lanes &= lanes - 1) {
        const uint64_t first = sim_address_at(r, in, 1, (uint32_t)__builtin_ctz(lanes));
        for (uint64_t word = first / 4; word <= (first + bytes - 1) / 4; word++) {
            uint64_t *of_bank = words[word % BANKS];
            uint32_t i = 0, n = count[word % BANKS];
            while (i < n && of_bank[i] != word)
                i++;
            if (i == n) of_bank[count[word % BANKS]++] = word;
            if (i == n && n + 1 > most) most = n + 1;
        }
    }
    return most;
}

void sim_wavefronts(run *r, const insn *in, uint32_t lanes, uint32_t bytes)
{
    if (!sim_config.count_wavefronts || in->space != SHARED) return;
    const uint32_t at_once = bytes <= 4 ? LANES : BANKS * 4 / bytes; /* lanes that ask for 128 bytes */
    for (uint32_t first = 0; first < LANES; first += at_once) {
        const uint32_t group = (at_once == LANES ? ~0u : (1u << at_once) - 1) << first;
        r->stats.shared_wavefronts += most_of_a_bank(r, in, lanes & group, bytes);
    }
}
