/* wgmma: the MMA of a warpgroup (sm_90a), asynchronous, B in shared memory, A there or in registers, sums in
 * registers.
 *
 * d (+)= a b: a 64 x K, b K x N, d 64 x N in fp32; N is twice the number of a thread's sums, d. The order of things:
 * wgmma_fence(), wgmmas, wgmma_commit_group(), wgmma_wait_group() before d is read, or a or b is written. */
#ifndef NK_WGMMA_CUH
#define NK_WGMMA_CUH

#include <stdint.h>

/* What `swizzle` of a tensor map that wrote the rows is here. */
enum { WGMMA_NO_SWIZZLE = 0, WGMMA_SWIZZLE_128B = 1, WGMMA_SWIZZLE_64B = 2, WGMMA_SWIZZLE_32B = 3 };

/* Of a K-major operand in shared memory. `leading`: without swizzle, bytes from eight rows of 16 bytes to those with
 * the next of K; with one it counts for nothing. `stride`: bytes from eight rows to the next eight. */
__device__ inline uint64_t wgmma_descriptor(uint32_t at, uint32_t leading, uint32_t stride, uint32_t swizzle)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)swizzle << 62;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Lists of registers                                                                                               */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The sums of a thread as an instruction lists them. */
#define NK_SUMS_4 "%0,%1,%2,%3"
#define NK_SUMS_8 NK_SUMS_4 ",%4,%5,%6,%7"
#define NK_SUMS_12 NK_SUMS_8 ",%8,%9,%10,%11"
#define NK_SUMS_16 NK_SUMS_12 ",%12,%13,%14,%15"
#define NK_SUMS_24 NK_SUMS_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NK_SUMS_32 NK_SUMS_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NK_SUMS_48 NK_SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NK_SUMS_40 NK_SUMS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NK_SUMS_56 NK_SUMS_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define NK_SUMS_64 NK_SUMS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NK_SUMS_80 NK_SUMS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NK_SUMS_96 NK_SUMS_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NK_SUMS_112 NK_SUMS_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define NK_SUMS_128 NK_SUMS_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* Registers as operands, which are read and written. */
#define NK_FOUR(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define NK_SIXTEEN(c, d, i) NK_FOUR(c, d, i), NK_FOUR(c, d, i + 4), NK_FOUR(c, d, i + 8), NK_FOUR(c, d, i + 12)
#define NK_OPERANDS_4(c, d) NK_FOUR(c, d, 0)
#define NK_OPERANDS_8(c, d) NK_FOUR(c, d, 0), NK_FOUR(c, d, 4)
#define NK_OPERANDS_12(c, d) NK_OPERANDS_8(c, d), NK_FOUR(c, d, 8)
#define NK_OPERANDS_16(c, d) NK_SIXTEEN(c, d, 0)
#define NK_OPERANDS_24(c, d) NK_OPERANDS_16(c, d), NK_FOUR(c, d, 16), NK_FOUR(c, d, 20)
#define NK_OPERANDS_32(c, d) NK_OPERANDS_16(c, d), NK_SIXTEEN(c, d, 16)
#define NK_OPERANDS_40(c, d) NK_OPERANDS_32(c, d), NK_FOUR(c, d, 32), NK_FOUR(c, d, 36)
#define NK_OPERANDS_48(c, d) NK_OPERANDS_32(c, d), NK_SIXTEEN(c, d, 32)
#define NK_OPERANDS_56(c, d) NK_OPERANDS_48(c, d), NK_FOUR(c, d, 48), NK_FOUR(c, d, 52)
#define NK_OPERANDS_64(c, d) NK_OPERANDS_48(c, d), NK_SIXTEEN(c, d, 48)
#define NK_OPERANDS_80(c, d) NK_OPERANDS_64(c, d), NK_SIXTEEN(c, d, 64)
#define NK_OPERANDS_96(c, d) NK_OPERANDS_80(c, d), NK_SIXTEEN(c, d, 80)
#define NK_OPERANDS_112(c, d) NK_OPERANDS_96(c, d), NK_SIXTEEN(c, d, 96)
#define NK_OPERANDS_128(c, d) NK_OPERANDS_112(c, d), NK_SIXTEEN(c, d, 112)

/* V(R, N, operand numbers R + 1 .. R + 5, ..): R sums of a thread, N columns; operand R is the first behind the sums.
 */
#define NK_WGMMA_SIZES(V, ...)                        \
    V(4, 8, 5, 6, 7, 8, 9, __VA_ARGS__)               \
    V(8, 16, 9, 10, 11, 12, 13, __VA_ARGS__)          \
    V(12, 24, 13, 14, 15, 16, 17, __VA_ARGS__)        \
    V(16, 32, 17, 18, 19, 20, 21, __VA_ARGS__)        \
    V(24, 48, 25, 26, 27, 28, 29, __VA_ARGS__)        \
    V(32, 64, 33, 34, 35, 36, 37, __VA_ARGS__)        \
    V(40, 80, 41, 42, 43, 44, 45, __VA_ARGS__)        \
    V(48, 96, 49, 50, 51, 52, 53, __VA_ARGS__)        \
    V(56, 112, 57, 58, 59, 60, 61, __VA_ARGS__)       \
    V(64, 128, 65, 66, 67, 68, 69, __VA_ARGS__)       \
    V(80, 160, 81, 82, 83, 84, 85, __VA_ARGS__)       \
    V(96, 192, 97, 98, 99, 100, 101, __VA_ARGS__)     \
    V(112, 224, 113, 114, 115, 116, 117, __VA_ARGS__) \
    V(128, 256, 129, 130, 131, 132, 133, __VA_ARGS__)

/* ---------------------------------------------------------------------------------------------------------------- */
/* The order of things                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* Registers that were written before may be operands after it. */
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* wgmma_fence(a): `a`, fragments of A, is written before it and not worked out again behind.
 * wgmma_wait_group<PENDING>(d): until at most PENDING of the warp's groups are under way; the sums d, of those that are
 * not, are read behind it. */
#define NK_WGMMA_ORDER(R, ...)                                                                                       \
    __device__ inline void wgmma_fence(uint32_t (&a)[R])                                                             \
    {                                                                                                                \
        asm volatile("wgmma.fence.sync.aligned;" : NK_OPERANDS_##R("+r", a) : : "memory");                           \
    }                                                                                                                \
    template <int PENDING> __device__ inline void wgmma_wait_group(float (&d)[R])                                    \
    {                                                                                                                \
        asm volatile("wgmma.wait_group.sync.aligned %" #R ";" : NK_OPERANDS_##R("+f", d) : "n"(PENDING) : "memory"); \
    }
NK_WGMMA_SIZES(NK_WGMMA_ORDER, )

template <int M, int N> __device__ inline void wgmma_fence(uint32_t (&a)[M][N])
{
    wgmma_fence(reinterpret_cast<uint32_t (&)[M * N]>(a));
}

template <int PENDING, int M, int N> __device__ inline void wgmma_wait_group(float (&d)[M][N])
{
    wgmma_wait_group<PENDING>(reinterpret_cast<float (&)[M * N]>(d));
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Products                                                                                                         */
/* ---------------------------------------------------------------------------------------------------------------- */

/* `behind`: what follows the two 1s, which negate no operand: of 16-bit operands in shared memory, whether K is their
 * outer dimension. It is only for the A of _along_m, where the descriptor's `stride` is bytes from eight of K to the
 * next eight, in rows of 64 elements of M. */
#define NK_WGMMA_REGISTERS(R, N, A1, A2, A3, B, ADD, type, k, behind)                                       \
    __device__ inline void wgmma_##type(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0;\n\t"                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #k ".f32." #type "." #type " {" NK_SUMS_##R \
                     "}, {%" #R ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1" behind "; }"               \
                     : NK_OPERANDS_##R("+f", d)                                                             \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate)             \
                     : "memory");                                                                           \
    }
#define NK_WGMMA_SHARED(R, N, B, ADD, _3, _4, _5, type, suffix, k, behind)                                  \
    __device__ inline void wgmma_##type##suffix(float (&d)[R], uint64_t a, uint64_t b, bool accumulate)     \
    {                                                                                                       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0;\n\t"                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k" #k ".f32." #type "." #type " {" NK_SUMS_##R \
                     "}, %" #R ", %" #B ", p, 1, 1" behind "; }"                                            \
                     : NK_OPERANDS_##R("+f", d)                                                             \
                     : "l"(a), "l"(b), "r"((int)accumulate)                                                 \
                     : "memory");                                                                           \
    }

NK_WGMMA_SIZES(NK_WGMMA_REGISTERS, f16, 16, ", 0")
NK_WGMMA_SIZES(NK_WGMMA_REGISTERS, bf16, 16, ", 0")
NK_WGMMA_SIZES(NK_WGMMA_REGISTERS, e4m3, 32, "")
NK_WGMMA_SIZES(NK_WGMMA_SHARED, f16, , 16, ", 0, 0")
NK_WGMMA_SIZES(NK_WGMMA_SHARED, bf16, , 16, ", 0, 0")
NK_WGMMA_SIZES(NK_WGMMA_SHARED, f16, _along_m, 16, ", 1, 0")
NK_WGMMA_SIZES(NK_WGMMA_SHARED, bf16, _along_m, 16, ", 1, 0")

#endif
