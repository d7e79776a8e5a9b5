/* Integer instructions of PTX whose result C does not spell in one obvious expression (PTX ISA 9.1, 9.7.1, 9.7.8).
 * Operands and results are the low `bits` (16, 32 or 64) of an uint64_t; results have zeros above. */
#ifndef PTXSIM_NUM_INT_H
#define PTXSIM_NUM_INT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    NUM_PRMT_INDEX,
    NUM_PRMT_F4E,
    NUM_PRMT_B4E,
    NUM_PRMT_RC8,
    NUM_PRMT_ECL,
    NUM_PRMT_ECR,
    NUM_PRMT_RC16
} num_prmt_mode;

uint32_t num_prmt(uint32_t a, uint32_t b, uint32_t c, num_prmt_mode mode);
/* `lut` as PTX's immLut: F(0xF0, 0xCC, 0xAA). */
uint32_t num_lop3(uint32_t a, uint32_t b, uint32_t c, uint8_t lut);
/* {b,a} shifted: the upper word of a left shift, the lower word of a right shift. `clamp` or wrap the amount. */
uint32_t num_shf_left(uint32_t a, uint32_t b, uint32_t amount, bool clamp);
uint32_t num_shf_right(uint32_t a, uint32_t b, uint32_t amount, bool clamp);
/* shl and shr: amounts past the width give all zeros, or all signs. `amount` is all 32 bits of the operand. */
uint64_t num_shl(int bits, uint64_t a, uint32_t amount);
uint64_t num_shr(int bits, bool is_signed, uint64_t a, uint32_t amount);

uint64_t num_bfe(int bits, bool is_signed, uint64_t a, uint32_t position, uint32_t length);
/* The low `length` bits of a inserted into b. */
uint64_t num_bfi(int bits, uint64_t a, uint64_t b, uint32_t position, uint32_t length);
/* Position of the highest bit that is not a sign; 0xFFFFFFFF if there is none. */
uint32_t num_bfind(int bits, bool is_signed, uint64_t a, bool shift_amount);
uint32_t num_fns(uint32_t mask, uint32_t base, int32_t offset);
uint32_t num_bmsk(uint32_t position, uint32_t width, bool clamp);
uint32_t num_szext(bool is_signed, uint32_t a, uint32_t width, bool clamp);
uint64_t num_brev(int bits, uint64_t a);
uint32_t num_clz(int bits, uint64_t a);
uint32_t num_popc(int bits, uint64_t a);

/* The high half of the product of two `bits`-wide numbers; mul.lo is plain C. */
uint64_t num_mul_hi(int bits, bool is_signed, uint64_t a, uint64_t b);
/* The product of two `bits`-wide numbers (16 or 32), twice as wide: mul.wide, and mad.wide with an addition after. */
uint64_t num_mul_wide(int bits, bool is_signed, uint64_t a, uint64_t b);
uint32_t num_mul24(bool is_signed, bool high, uint32_t a, uint32_t b);
/* By zero: all ones, and for the remainder a (what NVIDIA GPUs give; PTX: unspecified). MIN / -1 is MIN, MIN % -1 is 0.
 */
uint64_t num_div(int bits, bool is_signed, uint64_t a, uint64_t b);
uint64_t num_rem(int bits, bool is_signed, uint64_t a, uint64_t b);
/* add.sat.s32, sub.sat.s32, mad.hi.sat.s32: a 64-bit value clamped to s32. */
uint32_t num_sat_s32(int64_t value);
uint64_t num_sad(int bits, bool is_signed, uint64_t a, uint64_t b, uint64_t c);
uint32_t num_dp4a(bool a_signed, bool b_signed, uint32_t a, uint32_t b, uint32_t c);
uint32_t num_dp2a(bool a_signed, bool b_signed, bool upper, uint32_t a, uint32_t b, uint32_t c);

/* min, max, setp on integers. */
bool num_int_less(int bits, bool is_signed, uint64_t a, uint64_t b);

#endif
