/* Remembers what a pure function answered to the last questions of a thread, since a plan can take as long as a launch.
 */
#ifndef NK_MEMO_H
#define NK_MEMO_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NK_MEMO_BITS 4

/* Declares `memo`, the calling thread's slots of {asked, answer}. Questions are compared as bytes: they have no
 * padding, and none is all zeroes, as slots are at first. */
#define NK_MEMO(question_type, answer_type, memo) \
    static _Thread_local struct {                 \
        question_type asked;                      \
        answer_type answer;                       \
    } memo[1 << NK_MEMO_BITS]

/* The slot of a question that is whole 8-byte words. It has the answer if its `asked` is that question. */
static inline size_t nk_memo_slot(const void *question, size_t bytes)
{
    uint64_t sum = 0, word, factor = 0x9E3779B97F4A7C15u; /* one for each word, so that their order counts */
    for (size_t at = 0; at < bytes; at += sizeof word, factor += 0x9E3779B97F4A7C16u) {
        memcpy(&word, (const char *)question + at, sizeof word);
        sum += (word + (word >> 32)) * factor;
    }
    return (size_t)(sum >> (64 - NK_MEMO_BITS));
}

#endif
