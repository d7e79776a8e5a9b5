/* Decodes what edits tensor maps. */
#include "decode.h"

#include "num/num_tensormap.h"
#include "sync/flight.h"

static const struct {
    const char *name;
    num_tensormap_field field;
    bool is_wide, of_dimension;
} fields[] = {
    {"global_address", NUM_REPLACE_GLOBAL_ADDRESS, true, false},
    {"rank", NUM_REPLACE_RANK, false, false},
    {"box_dim", NUM_REPLACE_BOX_DIM, false, true},
    {"global_dim", NUM_REPLACE_GLOBAL_DIM, false, true},
    {"global_stride", NUM_REPLACE_GLOBAL_STRIDE, true, true},
    {"element_stride", NUM_REPLACE_ELEMENT_STRIDE, false, true},
    {"elemtype", NUM_REPLACE_ELEMTYPE, false, false},
    {"interleave_layout", NUM_REPLACE_INTERLEAVE, false, false},
    {"swizzle_mode", NUM_REPLACE_SWIZZLE_MODE, false, false},
    {"swizzle_atomicity", NUM_REPLACE_SWIZZLE_ATOMICITY, false, false},
    {"fill_mode", NUM_REPLACE_FILL_MODE, false, false},
};

/* tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], ordinal, value; only fields of a dimension have an
 * ordinal: `flags`. `op` is the field, `list` the value. */
static void decode_replace(builder *b, const statement *s, insn *in, pieces *p)
{
    uint32_t i = 0, n = sizeof fields / sizeof fields[0];
    if (!sim_take(p, "tile")) sim_unknown(b, s, "");
    while (i < n && !sim_take(p, fields[i].name))
        i++;
    if (i == n) sim_unknown(b, s, "the field");
    in->space = sim_take(p, "shared::cta") ? SHARED : sim_take(p, "global") ? GLOBAL : GENERIC;
    if (!sim_take(p, "b1024") || !sim_take(p, fields[i].is_wide ? "b64" : "b32")) sim_unknown(b, s, "");
    if (p->next != p->n) sim_unknown(b, s, "");
    if (s->n != 2u + fields[i].of_dimension) sim_unknown(b, s, "the number of operands");
    in->fn = sim_exec_map_replace;
    in->op = (uint8_t)fields[i].field;
    in->reg_size = fields[i].is_wide ? 8 : 4;
    if (fields[i].of_dimension) in->flags = (uint8_t)sim_immediate(b, &s->o[1]);
    sim_address(b, &s->o[0], in, 1);
    sim_push(in, sim_source(b, &s->o[s->n - 1], fields[i].is_wide ? 'd' : 'w'));
}

/* tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [to], [from], 128 */
static void decode_publish(builder *b, const statement *s, insn *in, pieces *p)
{
    bool known = sim_take(p, "global") && sim_take(p, "shared::cta") && sim_take(p, "tensormap::generic") &&
                 sim_take(p, "release");
    sim_next(p); /* the scope */
    known = known && sim_take(p, "sync") && sim_take(p, "aligned");
    if (!known || p->next != p->n || s->n != 3) sim_unknown(b, s, "");
    if (sim_immediate(b, &s->o[2]) != NUM_TENSORMAP_BYTES) sim_unknown(b, s, "the size");
    in->fn = sim_exec_map_publish;
    in->whole_warp = true;
    sim_address(b, &s->o[0], in, 1);
    sim_push_address(b, &s->o[1], in);
}

void sim_decode_map(builder *b, const statement *s, insn *in, pieces *p)
{
    if (sim_take(p, "replace"))
        decode_replace(b, s, in, p);
    else if (sim_take(p, "cp_fenceproxy"))
        decode_publish(b, s, in, p);
    else
        sim_unknown(b, s, "");
}
