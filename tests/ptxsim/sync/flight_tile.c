/* Issues and lands tiles of tensor maps (TMA).
 *
 * num_tensormap.h knows what a box is. Here it moves, sixteen bytes at a time. */
#include "flight.h"

#include "checks/report.h"
#include "checks/shadow.h"
#include "checks/stores.h"
#include "exec/exec_value.h"
#include "machine/traffic.h"
#include "num/num_tensormap.h"

/* A gather is a box of one row for each of its rows; they lie one behind the other in shared memory. */
static uint32_t boxes_of(const flight *f) { return f->in->flags & TILE_GATHER ? GATHERED_ROWS : 1; }

static num_box_piece piece_of(const flight *f, const num_tensormap *map, uint32_t k)
{
    if (boxes_of(f) == 1) return num_box_piece_at(map, f->coordinates, k);
    uint32_t each = num_box_pieces(map), row = k / each;
    int32_t first[2] = {f->coordinates[0], f->coordinates[1 + row]};
    num_box_piece piece = num_box_piece_at(map, first, k % each);
    piece.shared += row * num_box_span(map);
    return piece;
}

static const char *wrong_map(const insn *in, const num_tensormap *map)
{
    const char *why = num_tensormap_check(map);
    bool gathers = in->flags & TILE_GATHER;
    if (!why && map->rank != (gathers ? 2u : in->vec)) why = "a map of another rank than the instruction's";
    if (!why && gathers && map->box_less_one[1]) why = "a box of several rows, of which each is to be elsewhere";
    return why;
}

static bool read_map(run *r, const insn *in, uint32_t lane, flight *f)
{
    uint64_t address = sim_listed_address(r, in, 0, lane);
    const uint8_t *from = sim_locate(r, in, lane, GENERIC, address, 64, READ);
    if (!from || !sim_locate(r, in, lane, GENERIC, address + 64, 64, READ)) return false;
    memcpy(f->map, from, sizeof f->map);
    num_tensormap map;
    memcpy(&map, f->map, sizeof map);
    const char *why = wrong_map(in, &map);
    if (why) {
        sim_report(r, in, 'E', "tensor-map", (int)lane, "%s", why);
        return false;
    }
    for (uint32_t k = 0; k < in->vec; k++)
        f->coordinates[k] = (int32_t)sim_lane(r, in->list[2 + k], 4, lane);
    f->bytes = boxes_of(f) * num_box_span(&map);
    return true;
}

/* Whether ordinary stores of this launch to what the tile loads are behind a fence. */
static void check_stores(run *r, const insn *in, uint32_t lane, const flight *f)
{
    num_tensormap map;
    memcpy(&map, f->map, sizeof map);
    if (!sim_stores_matter(r, map.address)) return;
    for (uint32_t k = 0, n = boxes_of(f) * num_box_pieces(&map); k < n; k++) {
        num_box_piece piece = piece_of(f, &map, k);
        uint32_t first = (uint32_t)__builtin_ctz(piece.inside | 0x10000u);
        if (first < 16 && !sim_stores_check(r, in, lane, piece.global + first, 1)) return;
    }
}

static bool issue_tile(run *r, const insn *in, uint32_t i)
{
    flight f = {.kind = (flight_kind)in->op, .in = in};
    uint64_t shared = sim_address_at(r, in, 1, i);
    if (!read_map(r, in, i, &f)) return false;
    if (shared % 128) {
        sim_report(r, in, 'E', "misaligned", (int)i, "a tile at shared address 0x%llx, no multiple of 128",
                   (unsigned long long)shared);
        return false;
    }
    if (f.kind == FLY_TILE_OUT) {
        f.group = sim_bulk_groups(r->warp)->committed[i];
        return sim_take_source(r, in, i, shared, f.bytes, &f) && sim_flight_start(r, in, i, &f);
    }
    check_stores(r, in, i, &f);
    uint32_t next = 2u + in->vec, place = in->list[next + 2];
    uint32_t mask = place == NONE ? 0 : (uint32_t)sim_lane(r, place, 2, i);
    return sim_deliver(r, in, i, shared, sim_listed_address(r, in, next, i), mask, &f);
}

step sim_exec_tile(run *r, const insn *in)
{
    ACTIVE(r)
    {
        if (!issue_tile(r, in, i)) return STEP_FAIL;
    }
    return STEP_SLEEP;
}

static bool move_piece(run *r, const flight *f, const num_tensormap *map, const num_box_piece *piece, uint64_t fill)
{
    const cta *owner = f->kind == FLY_TILE_IN ? f->target : f->source;
    uint32_t base = f->kind == FLY_TILE_IN ? f->to : f->from;
    uint8_t *shared = owner->smem + num_swizzled((num_swizzle)map->swizzle, base + piece->shared);
    access how = f->kind == FLY_TILE_IN ? READ : WRITE;
    uint8_t *first = piece->inside == 0xffff ? sim_locate(r, f->in, f->lane, GLOBAL, piece->global, 1, how) : NULL;
    if (first && piece->global + 16 <= r->hi) { /* in one piece of memory */
        if (!r->uncounted) sim_traffic(r, piece->global, 16, how);
        if (how == WRITE) sim_stored_async(r, piece->global, 16);
        memcpy(how == READ ? shared : first, how == READ ? first : shared, 16);
        return true;
    }
    for (uint32_t k = 0; k < 16; k++) {
        uint8_t *global = NULL;
        if (piece->inside >> k & 1) {
            global = sim_locate(r, f->in, f->lane, GLOBAL, piece->global + k, 1, how);
            if (!global) return false;
        }
        if (f->kind == FLY_TILE_OUT && global) *global = shared[k];
        if (f->kind == FLY_TILE_IN) shared[k] = global ? *global : (uint8_t)(fill >> 8 * (k & 7));
    }
    return true;
}

bool sim_tile_land(run *r, flight *f)
{
    num_tensormap map;
    memcpy(&map, f->map, sizeof map);
    uint64_t fill = num_box_fill(&map);
    uint32_t pieces = boxes_of(f) * num_box_pieces(&map);
    sim_traffic_anew(r);
    r->uncounted = f->again;
    for (uint32_t k = 0; k < pieces; k++) {
        num_box_piece piece = piece_of(f, &map, k);
        if (!move_piece(r, f, &map, &piece, fill)) return false;
    }
    r->uncounted = false;
    if (f->target) sim_shadow_landed(f->target, f->to, f->bytes, f->epoch);
    f->bytes = 16 * pieces; /* what the mbarrier gets */
    return true;
}
