/* Floating-point values of PTX as bit patterns: conversions, arithmetic, comparison, approximations.
 *
 * Every value is an uint64_t whose low bits hold the format's code (the rest is zero in results, ignored in operands).
 * Pure functions: no state, no allocation; they need the host's default floating-point environment (round to nearest,
 * subnormals kept), a compiler that does not contract a*b+c (-std=c11 or -ffp-contract=off) and an IEEE 754 host.
 *
 * Rules: PTX ISA 9.1, sections 6.5 (rounding), 9.7.3 and 9.7.4 (arithmetic), 9.7.6 (comparison), 9.7.9.21 (cvt).
 * NaN: f32 results are 0x7FFFFFFF, f16 and bf16 0x7FFF, e4m3 and e5m2 0x7F, as NVIDIA hardware gives.
 *      Exceptions: f32 from bf16 (a shift of 16 bits on hardware, so the payload stays), abs and neg (bit operations).
 * ftz: subnormal f32 and f16 operands count as zeros of their sign, and results that are subnormal *after* rounding
 *      become zeros of their sign (PTX does not say whether before or after).
 * sat and relu give +0, never -0.
 */
#ifndef PTXSIM_NUM_FLOAT_H
#define PTXSIM_NUM_FLOAT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    NUM_F64, /* of no instruction; tests convert from it */
    NUM_F32,
    NUM_F16,
    NUM_BF16,
    NUM_E5M2, /* infinities and NaN as IEEE 754 */
    NUM_E4M3, /* no infinity; NaN is 0x7F and 0xFF */
    NUM_E2M1, /* no infinity, no NaN; four bits */
    NUM_FORMATS
} num_format;

typedef enum {
    NUM_RN,  /* nearest, ties to even: .rn, .rni */
    NUM_RZ,  /* towards zero: .rz, .rzi */
    NUM_RM,  /* towards minus infinity: .rm, .rmi */
    NUM_RP,  /* towards plus infinity: .rp, .rpi */
    NUM_RNA, /* nearest, ties away from zero: .rna */
} num_round;

/* The modifiers of one instruction; all zero is ".rn" alone. */
typedef struct {
    uint8_t round; /* a num_round */
    bool ftz;
    bool sat;       /* clamp to [0, 1]; NaN becomes +0 */
    bool satfinite; /* clamp to the largest finite value; NaN stays, or becomes that value where a format has none */
    bool relu;      /* negative becomes +0; NaN stays */
    bool nan;       /* min, max: NaN if any operand is */
} num_mode;

/* Bits of a code: 64, 32, 16, 16, 8, 8, 4; as many it takes in a packed register. */
int num_bits(num_format format);

/* ---- cvt ----------------------------------------------------------------------------------------------------- */

/* cvt.to.from; formats may be equal (then only ftz, sat and relu act). */
uint64_t num_convert(num_format to, num_format from, uint64_t x, num_mode mode);
/* cvt.rni.f32.f32 and so on: an integral value in the same format. */
uint64_t num_to_integral(num_format format, uint64_t x, num_mode mode);
/* cvt to an integer of `bits` (8, 16, 32, 64): clamped to its range; the result is sign- or zero-extended to 64. */
uint64_t num_to_integer(int bits, bool is_signed, num_format from, uint64_t x, num_mode mode);
/* cvt from an integer, sign- or zero-extended to 64 bits by the caller. */
uint64_t num_from_integer(num_format to, bool is_signed, uint64_t x, num_mode mode);
/* cvt between integers: chop, or with `sat` clamp, then extend to 64. `x` is extended to 64 by the caller. */
uint64_t num_integer_to_integer(int bits, bool is_signed, bool sat, bool from_signed, uint64_t x);

/* Two lanes. `a` goes to the upper lane, `b` to the lower: cvt.rn.f16x2.f32, cvt.rn.satfinite.e2m1x2.f32 ... */
uint32_t num_convert_to_pair(num_format to, num_format from, uint64_t a, uint64_t b, num_mode mode);
/* Lane by lane: cvt.rn.f16x2.e4m3x2, cvt.rn.satfinite.e4m3x2.f16x2 ... */
uint32_t num_convert_pair(num_format to, num_format from, uint32_t pair, num_mode mode);

/* ---- arithmetic ---------------------------------------------------------------------------------------------- */

typedef enum {
    NUM_ADD,
    NUM_SUB,
    NUM_MUL,
    NUM_FMA, /* a*b+c, rounded once; also mad */
    NUM_DIV,
    NUM_SQRT,
    NUM_RCP,
    NUM_MIN, /* -0 < +0 */
    NUM_MAX,
    NUM_ABS,
    NUM_NEG,
    NUM_COPYSIGN, /* PTX's order: the sign of a, the magnitude of b */
    /* Approximations (f32, f16, bf16): modelled as the correctly rounded function, which lies within every bound that
     * PTX states (ex2: 2 ulp; lg2: 2^-22; rcp: 1 ulp; sqrt, rsqrt: 2^-23, 2^-22.9; div: 2 ulp; tanh: 2^-11).
     * Hardware differs within those bounds: an H200's are in docs/simulator.md. NUM_SQRT and
     * NUM_RCP serve sqrt.approx and rcp.approx.
     */
    NUM_DIV_APPROX, /* a/b; for |b| > 2^126 a zero, or NaN where a is infinite */
    NUM_RSQRT,
    NUM_EX2,
    NUM_LG2,
    NUM_TANH,
} num_op;

/* One value of f32, f16 or bf16; operands an operation does not have are ignored. */
uint64_t num_arith(num_op op, num_format format, uint64_t a, uint64_t b, uint64_t c, num_mode mode);
/* Two lanes of f16, bf16 (in 32 bits) or f32 (in 64). */
uint64_t num_arith_pair(num_op op, num_format format, uint64_t a, uint64_t b, uint64_t c, num_mode mode);

/* ---- what the matrix units and tests use --------------------------------------------------------------------- */

/* The value of a code; exact for every format. */
double num_value(num_format format, uint64_t x);
/* A double rounded once to `to`. */
uint64_t num_from_value(num_format to, double value, num_mode mode);
/* (-1)^negative * significand * 2^exponent rounded once to `to`; any significand. */
uint64_t num_round_scaled(num_format to, bool negative, int exponent, uint64_t significand, num_mode mode);

#endif
