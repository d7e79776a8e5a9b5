/* Reads words, numbers and strings of PTX text. */
#include "ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool sim_is(slice s, const char *text) { return strlen(text) == s.n && memcmp(s.s, text, s.n) == 0; }

bool sim_begins(slice s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && memcmp(s.s, text, n) == 0;
}

/* White space and comments. */
void sim_skip(cursor *c)
{
    while (c->p < c->end) {
        if (*c->p == '\n') c->line++;
        if (isspace((unsigned char)*c->p)) {
            c->p++;
        } else if (c->p + 1 < c->end && c->p[0] == '/' && c->p[1] == '/') {
            while (c->p < c->end && *c->p != '\n')
                c->p++;
        } else if (c->p + 1 < c->end && c->p[0] == '/' && c->p[1] == '*') {
            for (c->p += 2; c->p + 1 < c->end && !(c->p[0] == '*' && c->p[1] == '/'); c->p++)
                c->line += *c->p == '\n';
            c->p += 2;
        } else {
            return;
        }
    }
}

bool sim_accept(cursor *c, char what)
{
    sim_skip(c);
    if (c->p >= c->end || *c->p != what) return false;
    c->p++;
    return true;
}

static bool is_word(char x) { return isalnum((unsigned char)x) || x == '_' || x == '$' || x == '%'; }

slice sim_word(cursor *c)
{
    sim_skip(c);
    slice s = {c->p, 0};
    while (c->p < c->end && (is_word(*c->p) || *c->p == '.' || (*c->p == ':' && c->p[1] == ':'))) {
        if (*c->p == ':') c->p++;
        c->p++;
    }
    s.n = (uint32_t)(c->p - s.s);
    return s;
}

slice sim_name(cursor *c)
{
    sim_skip(c);
    slice s = {c->p, 0};
    while (c->p < c->end && (is_word(*c->p) || (*c->p == '.' && *s.s == '%')))
        c->p++;
    s.n = (uint32_t)(c->p - s.s);
    return s;
}

bool sim_starts_number(const cursor *c)
{
    const char *p = c->p;
    if (p < c->end && (*p == '-' || *p == '+')) p++;
    return p < c->end && isdigit((unsigned char)*p);
}

/* 12, -3, 0x1F, 077, 5U, 0f3F800000 (the bits of a float), 0d.. (of a double), 1.5 */
int64_t sim_number(cursor *c, operand_kind *kind)
{
    bool negative = *c->p == '-';
    if (*c->p == '-' || *c->p == '+') c->p++;
    char *end;
    *kind = O_IMMEDIATE;
    uint64_t value;
    if (c->p[0] == '0' && strchr("fFdD", c->p[1]) && c->p[1]) {
        *kind = strchr("fF", c->p[1]) ? O_FLOAT : O_DOUBLE;
        value = strtoull(c->p + 2, &end, 16);
        if (negative) value ^= *kind == O_FLOAT ? 1u << 31 : (uint64_t)1 << 63;
        c->p = end;
        return (int64_t)value;
    }
    value = strtoull(c->p, &end, 0);
    if (*end == '.' && isdigit((unsigned char)end[1])) {
        double real = strtod(c->p, &end);
        real = negative ? -real : real;
        memcpy(&value, &real, sizeof value);
        *kind = O_DOUBLE;
        c->p = end;
        return (int64_t)value;
    }
    while (*end == 'U' || *end == 'u' || *end == 'L')
        end++;
    c->p = end;
    return negative ? -(int64_t)value : (int64_t)value;
}

slice sim_string(cursor *c)
{
    slice s = {c->p, 0};
    if (!sim_accept(c, '"')) return s;
    s.s = c->p;
    while (c->p < c->end && *c->p != '"')
        c->p++;
    s.n = (uint32_t)(c->p - s.s);
    c->p += c->p < c->end;
    return s;
}

void sim_skip_block(cursor *c)
{
    for (int depth = 1; depth > 0;) {
        sim_skip(c);
        if (c->p >= c->end) return;
        if (*c->p == '"') {
            sim_string(c);
            continue;
        }
        depth += *c->p == '{' ? 1 : *c->p == '}' ? -1 : 0;
        c->p++;
    }
}
