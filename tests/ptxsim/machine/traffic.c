/* Counts what L2 sees of accesses to global memory, in sectors of 32 bytes.
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
