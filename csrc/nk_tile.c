/* Reads NVFP4KERN_TILE against the families of the backend table. */
#include "nk_tile.h"

#include "backend.h"

#include <stdio.h>
#include <string.h>

/* A piece of the environment's text. */
typedef struct name_piece {
    const char *at;
    int length;
} name_piece;

/* "<row>/<family>:<tile>" */
typedef struct entry {
    name_piece all, row, family, tile;
} entry;

static bool is(name_piece p, const char *name) { return strncmp(p.at, name, (size_t)p.length) == 0 && !name[p.length]; }

/* What lies before the first `end`; *p keeps what lies behind it. False where there is none. */
static bool cut(name_piece *p, char end, name_piece *before)
{
    const char *found = memchr(p->at, end, (size_t)p->length);
    if (!found) return false;
    *before = (name_piece){p->at, (int)(found - p->at)};
    *p = (name_piece){found + 1, p->length - before->length - 1};
    return true;
}

/* Takes the list's next entry; `tile.at` is NULL where that is not written as one. False at the end. */
static bool next_entry(const char **list, entry *e)
{
    if (!*list) return false;
    name_piece rest = {*list, (int)strcspn(*list, ",")};
    *list = rest.at[rest.length] ? rest.at + rest.length + 1 : NULL;
    *e = (entry){.all = rest};
    if (cut(&rest, '/', &e->row) && cut(&rest, ':', &e->family)) e->tile = rest;
    return true;
}

static int tile_index(name_piece name, const nk_family *family)
{
    for (int i = 0; family->tiles[i]; i++) {
        if (is(name, family->tiles[i])) return i;
    }
    return NK_TILE_ANY;
}

static bool is_of(const entry *e, const nk_family *family)
{
    return is(e->row, family->row) && (is(e->family, family->name) || (family->alias && is(e->family, family->alias)));
}

/* That of an entry, or NULL. */
static const nk_family *family_of(const entry *e)
{
    const nk_family *family = NULL;
    for (int i = 0; e->tile.at && (family = nk_backend_family(i)) && !is_of(e, family); i++)
        continue;
    return family;
}

int nk_tile_named(const char *list, const nk_family *family)
{
    entry e;
    while (next_entry(&list, &e)) {
        if (e.tile.at && is_of(&e, family)) return tile_index(e.tile, family);
    }
    return NK_TILE_ANY;
}

/* Names for a message, each once where equal ones follow each other. */
typedef struct names {
    char text[256];
    const char *last;
} names;

static void add(names *n, const char *name)
{
    if (n->last && strcmp(n->last, name) == 0) return;
    const size_t length = strlen(n->text);
    snprintf(n->text + length, sizeof n->text - length, "%s%s", n->last ? ", " : "", name);
    n->last = name;
}

static nk_status unknown(const entry *e, const char *what, const names *known)
{
    return nk_fail(NK_BACKEND_ERROR, "NVFP4KERN_TILE: '%.*s': no such %s, this build has: %s", e->all.length, e->all.at,
                   what, known->last ? known->text : "none");
}

static nk_status check_entry(const entry *e)
{
    names rows = {.last = NULL}, families = rows, tiles = rows;
    const nk_family *family;
    NK_CHECK(e->tile.at, NK_BACKEND_ERROR, "NVFP4KERN_TILE: '%.*s', expected <row>/<family>:<tile>", e->all.length,
             e->all.at);
    for (int i = 0; (family = nk_backend_family(i)); i++) {
        add(&rows, family->row);
        if (!is(e->row, family->row)) continue;
        add(&families, family->name);
        if (!is_of(e, family)) continue;
        if (tile_index(e->tile, family) != NK_TILE_ANY) return NK_OK;
        for (int tile = 0; family->tiles[tile]; tile++)
            add(&tiles, family->tiles[tile]);
    }
    if (!families.last) return unknown(e, "row with tiles", &rows);
    return tiles.last ? unknown(e, "tile of this family", &tiles) : unknown(e, "family of this row", &families);
}

nk_status nk_tile_check(const nk_settings *settings)
{
    entry e, later;
    for (const char *list = settings->tile; next_entry(&list, &e);) {
        NK_TRY(check_entry(&e));
        for (const char *rest = list; next_entry(&rest, &later);) {
            NK_CHECK(family_of(&later) != family_of(&e), NK_BACKEND_ERROR,
                     "NVFP4KERN_TILE: two tiles of one family: '%.*s' and '%.*s'", e.all.length, e.all.at,
                     later.all.length, later.all.at);
        }
    }
    return NK_OK;
}
