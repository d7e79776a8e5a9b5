/* Knows the device's allocations, and finds the memory of an address or reports that there is none. */
#include "memory.h"

#include "traffic.h"
#include "checks/report.h"
#include "checks/shadow.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Addresses on both sides of an allocation that belong to nobody, so that a wrong index does not find another one. They
 * cost no memory. */
#define GUARD ((size_t)256 << 20)
#define PAGES ((size_t)64 << 10) /* a multiple of every host's pages */

/* ---------------------------------------------------------------------------------------------------------------- */
/* Allocations                                                                                                      */
/* ---------------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static extent *extents; /* sorted, apart */
static uint32_t n_extents;

static uint32_t first_after(uint64_t address) /* the first extent that ends after it */
{
    uint32_t low = 0, high = n_extents;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (extents[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void forget(uint32_t from, uint32_t to)
{
    memmove(&extents[from], &extents[to], (n_extents - to) * sizeof *extents);
    n_extents -= to - from;
}

static void add(extent new)
{
    pthread_mutex_lock(&lock);
    uint32_t from = first_after(new.begin), to = from;
    while (to < n_extents && extents[to].begin < new.end)
        to++;
    forget(from, to);
    extents = realloc(extents, (n_extents + 1) * sizeof *extents);
    memmove(&extents[from + 1], &extents[from], (n_extents - from) * sizeof *extents);
    extents[from] = new;
    n_extents++;
    pthread_mutex_unlock(&lock);
}

void sim_memory_adopt(const void *begin, size_t bytes)
{
    uint64_t address = (uint64_t)(uintptr_t)begin;
    if (bytes) add((extent){.begin = address, .end = address + bytes});
}

void *sim_memory_allocate(size_t bytes)
{
    size_t pages = (bytes + PAGES - 1) / PAGES * PAGES, whole = pages + 2 * GUARD;
    uint8_t *first = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED) return NULL;
    if (mprotect(first + GUARD, pages, PROT_READ | PROT_WRITE)) return munmap(first, whole), NULL;
    memset(first + GUARD, POISON_BYTE, bytes);
    uint64_t address = (uint64_t)(uintptr_t)(first + GUARD);
    add((extent){.begin = address, .end = address + bytes, .reserved = whole});
    return first + GUARD;
}

bool sim_memory_free(const void *begin)
{
    pthread_mutex_lock(&lock);
    uint32_t i = first_after((uint64_t)(uintptr_t)begin);
    size_t reserved = i < n_extents && extents[i].begin == (uint64_t)(uintptr_t)begin ? extents[i].reserved : 0;
    if (reserved) forget(i, i + 1);
    pthread_mutex_unlock(&lock);
    if (reserved) munmap((uint8_t *)(uintptr_t)begin - GUARD, reserved);
    return reserved;
}

extent *sim_memory_extents(uint32_t *count)
{
    pthread_mutex_lock(&lock);
    extent *copy = malloc((n_extents + 1) * sizeof *copy);
    if (n_extents) memcpy(copy, extents, n_extents * sizeof *copy);
    *count = n_extents;
    pthread_mutex_unlock(&lock);
    return copy;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Addresses                                                                                                        */
/* ---------------------------------------------------------------------------------------------------------------- */

uint64_t sim_address_at(const run *r, const insn *in, int slot, uint32_t lane)
{
    const void *v = at(r, in->o[slot]);
    if (in->a_type == 4) return (uint32_t)(((const uint32_t *)v)[lane] + (uint32_t)in->imm);
    return ((const uint64_t *)v)[lane] + (uint64_t)in->imm;
}

uint64_t sim_listed_address(const run *r, const insn *in, uint32_t index, uint32_t lane)
{
    bool narrow = in->list[index] & LISTED_32_BITS;
    const void *base = at(r, in->list[index] & ~LISTED_32_BITS);
    uint64_t displacement = ((const uint64_t *)at(r, in->list[index + 1]))[lane];
    if (narrow) return (uint32_t)(((const uint32_t *)base)[lane] + (uint32_t)displacement);
    return ((const uint64_t *)base)[lane] + displacement;
}

static const char *const verbs[] = {"reads", "writes", "updates", "copies to"};

static uint8_t *bad(run *r, const insn *in, uint32_t lane, const char *code, const char *where, uint64_t address,
                    uint32_t bytes, access how, const char *limits)
{
    sim_report(r, in, 'E', code, (int)lane, "%s %u bytes at 0x%llx of %s memory%s", verbs[how], bytes,
               (unsigned long long)address, where, limits);
    return NULL;
}

static uint8_t *counted(run *r, uint64_t address, uint32_t bytes, access how)
{
    if (!r->uncounted) sim_traffic(r, address, bytes, how);
    return (uint8_t *)(uintptr_t)address;
}

static uint32_t first_behind(const launch *l, uint64_t address) /* the first extent that ends after it */
{
    uint32_t low = 0, high = l->n_extents;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (l->extents[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* No sums: address + bytes may wrap around. */
static bool is_inside(uint64_t address, uint32_t bytes, uint64_t begin, uint64_t end)
{
    return address >= begin && address < end && bytes <= end - address;
}

bool sim_memory_find(run *r, uint64_t address, uint32_t bytes)
{
    if (is_inside(address, bytes, r->lo, r->hi)) return true;
    const extent *all = r->launch->extents;
    uint32_t at = first_behind(r->launch, address);
    if (at == r->launch->n_extents || !is_inside(address, bytes, all[at].begin, all[at].end)) return false;
    r->lo = all[at].begin;
    r->hi = all[at].end;
    r->first_bit = r->launch->first_bits[at];
    r->extent = at;
    return true;
}

static uint8_t *locate_global(run *r, const insn *in, uint32_t lane, uint64_t address, uint32_t bytes, access how)
{
    if (sim_memory_find(r, address, bytes)) return counted(r, address, bytes, how);
    const extent *all = r->launch->extents;
    uint32_t low = first_behind(r->launch, address);
    char limits[160] = ", which is far from any allocation";
    if (low > 0 && address - all[low - 1].end < 65536)
        snprintf(limits, sizeof limits, ", %llu bytes behind the end of an allocation of %llu bytes",
                 (unsigned long long)(address - all[low - 1].end),
                 (unsigned long long)(all[low - 1].end - all[low - 1].begin));
    else if (low < r->launch->n_extents && all[low].begin <= address)
        snprintf(limits, sizeof limits, ", across the end of an allocation of %llu bytes",
                 (unsigned long long)(all[low].end - all[low].begin));
    else if (low < r->launch->n_extents && all[low].begin - address < 65536)
        snprintf(limits, sizeof limits, ", %llu bytes before an allocation of %llu bytes",
                 (unsigned long long)(all[low].begin - address), (unsigned long long)(all[low].end - all[low].begin));
    return bad(r, in, lane, "out-of-bounds", "global", address, bytes, how, limits);
}

cta *sim_owner(run *r, const insn *in, uint32_t lane, space space, uint64_t address, uint32_t bytes, access how)
{
    cluster *c = r->cta->cluster;
    uint64_t rank = address >> RANK_SHIFT;
    char limits[80];
    if (rank >= c->n) {
        snprintf(limits, sizeof limits, ", in a cluster of %u", c->n);
        bad(r, in, lane, "out-of-bounds", "shared", address, bytes, how, limits);
        return NULL;
    }
    cta *owner = c->ctas[rank];
    if (space == SHARED && owner != r->cta) {
        bad(r, in, lane, "out-of-bounds", "another CTA's shared", address, bytes, how, ", as its own");
        return NULL;
    }
    if (owner->done) {
        bad(r, in, lane, "exited-cta", "shared", address, bytes, how, " of a CTA that has exited");
        return NULL;
    }
    uint64_t offset = address & ~(uint64_t)RANK_MASK;
    if (offset + bytes <= owner->smem_bytes) return owner;
    snprintf(limits, sizeof limits, " of %u bytes", owner->smem_bytes);
    bad(r, in, lane, "out-of-bounds", "shared", address, bytes, how, limits);
    return NULL;
}

static uint8_t *locate_shared(run *r, const insn *in, uint32_t lane, space space, uint64_t address, uint32_t bytes,
                              access how)
{
    cta *owner = sim_owner(r, in, lane, space, address, bytes, how);
    if (!owner) return NULL;
    uint32_t offset = (uint32_t)address & ~RANK_MASK;
    if (owner->shadow) sim_shadow(r, in, lane, owner, offset, bytes, how);
    return owner->smem + offset;
}

uint8_t *sim_locate(run *r, const insn *in, uint32_t lane, space space, uint64_t address, uint32_t bytes, access how)
{
    uint64_t natural = bytes & (~(uint64_t)bytes + 1); /* 12 bytes of a vector of three are aligned to 4 */
    uint64_t window = address >> WINDOW_SHIFT;
    if (bytes > 32) natural = 16; /* bulk copies */
    if (address & (natural - 1)) return bad(r, in, lane, "misaligned", "misaligned", address, bytes, how, "");
    if (space == GENERIC && window) {
        space = window == 1 ? CLUSTER : window == 2 ? LOCAL : PARAM;
        address &= ((uint64_t)1 << WINDOW_SHIFT) - 1;
    }
    switch (space) {
    case SHARED:
    case CLUSTER:
        return locate_shared(r, in, lane, space, address, bytes, how);
    case LOCAL:
        if (!is_inside(address, bytes, 0, r->program->local_bytes))
            return bad(r, in, lane, "out-of-bounds", "local", address, bytes, how, "");
        return r->warp->local + (size_t)lane * r->program->local_bytes + address;
    case PARAM:
        if (how != READ || !is_inside(address, bytes, 0, r->program->param_bytes))
            return bad(r, in, lane, "out-of-bounds", "parameter", address, bytes, how, "");
        return (uint8_t *)(uintptr_t)r->launch->params + address;
    default:
        return locate_global(r, in, lane, address, bytes, how);
    }
}
