// CuTe's own layouts as lines of numbers, for the tests to compare with: "name: n n n ...". Compiled on the host
// against an installed CUTLASS; nothing of it is copied here.
#include <cstdio>

#include <cute/tensor.hpp>

using namespace cute;

/* A (thread, value) layout: index of value v of thread t, threads outermost. */
template <class Layout> void print_tv(const char *name, Layout const &layout)
{
    std::printf("%s:", name);
    for (int t = 0; t < size<0>(layout); t++) {
        for (int v = 0; v < size<1>(layout); v++)
            std::printf(" %d", int(layout(t, v)));
    }
    std::printf("\n");
}

template <class Traits> void print_mma(const char *a, const char *b, const char *c)
{
    print_tv(a, typename Traits::ALayout{});
    print_tv(b, typename Traits::BLayout{});
    print_tv(c, typename Traits::CLayout{});
}

/* Where a tile lies in shared memory, in bytes, rows (M or N) outermost, and the descriptor CuTe makes of its first
 * `k_step` columns. */
template <class T, class Major, class Atom, class Rows, class Columns, class KStep, class MakeDescriptor>
void print_tile(const char *name, Major, Atom const &atom, Rows rows, Columns columns, KStep k_step,
                MakeDescriptor make)
{
    auto layout = tile_to_shape(atom, make_shape(rows, columns));
    auto offsets = as_position_independent_swizzle_layout(layout);
    auto tensor = make_tensor(make_smem_ptr(static_cast<T *>(nullptr)), layout);
    auto step = local_tile(tensor, make_shape(rows, k_step), make_coord(0, 0));
    std::printf("%s: %llu", name, static_cast<unsigned long long>(make(step)));
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < k_step; c++)
            std::printf(" %d", int(offsets(r, c)) * int(sizeof(T)));
    }
    std::printf("\n");
}

#define GMMA_TILE(T, major, swizzle, step)                                                                          \
    print_tile<T>("gmma_" #major "_" #swizzle "_" #T, 0, SM90::GMMA::Layout_##major##_##swizzle##_Atom<T>{}, _64{}, \
                  _128{}, step{}, [](auto const &t) {                                                               \
                      return static_cast<uint64_t>(SM90::GMMA::make_gmma_desc<SM90::GMMA::Major::major>(t));        \
                  })
#define UMMA_TILE(T, major, swizzle, step)                                                                             \
    print_tile<T>("umma_" #major "_" #swizzle "_" #T, 0, UMMA::Layout_##major##_##swizzle##_Atom<T>{}, _128{}, _128{}, \
                  step{},                                                                                              \
                  [](auto const &t) { return static_cast<uint64_t>(UMMA::make_umma_desc<UMMA::Major::major>(t)); })

/* Tensor-memory loads: the bit address (lane * 2^21 + column * 32 + bit) of every 32nd bit of every thread. */
template <class Op> void print_load(const char *name)
{
    using Traits = Copy_Traits<Op>;
    auto to_bits = typename Traits::DstLayout{};
    auto to_address = typename Traits::ValID{};
    std::printf("%s:", name);
    for (int t = 0; t < 32; t++) {
        for (int v = 0; v < size<1>(to_bits); v += 32) {
            int address = to_address(int(to_bits(t, v)));
            std::printf(" %d %d", address >> 21, (address & ((1 << 21) - 1)) / 32);
        }
    }
    std::printf("\n");
}

/* Copies to tensor memory: source bit (row fastest) and address of every 32nd bit. */
template <class Op> void print_copy(const char *name)
{
    using Traits = Copy_Traits<Op>;
    auto to_source = typename Traits::SrcLayout{};
    auto to_bits = typename Traits::DstLayout{};
    auto to_address = typename Traits::ValID{};
    std::printf("%s:", name);
    for (int v = 0; v < size<1>(to_bits); v++) {
        int address = to_address(int(to_bits(0, v))), source = int(to_source(0, v));
        if (address % 32 == 0) std::printf(" %d %d %d", source, address >> 21, (address & ((1 << 21) - 1)) / 32);
    }
    std::printf("\n");
}

/* An accumulator's cells: lane and column of every (row, column). */
template <int CTAS, int M, int N> void print_accumulator(const char *name)
{
    auto tensor =
        UMMA::tmem_frg<float, float, CTAS>::make(make_shape(make_shape(Int<M / CTAS>{}, Int<N>{}), _1{}, _1{}));
    std::printf("%s:", name);
    for (int m = 0; m < M / CTAS; m++) {
        for (int n = 0; n < N; n++) {
            unsigned address = unsigned(tensor.layout()(make_coord(m, n), 0, 0));
            std::printf(" %u %u", address >> 16, address & 0xFFFF);
        }
    }
    std::printf("\n");
}

int main()
{
    print_mma<MMA_Traits<SM80_16x8x8_F32F16F16F32_TN>>("a_16_k8", "b_16_k8", "c_16_k8");
    print_mma<MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>>("a_16_k16", "b_16_k16", "c_16_k16");
    print_mma<MMA_Traits<SM80_16x8x32_S32S8S8S32_TN>>("a_8_k32", "b_8_k32", "c_8_k32");
    print_tv("wgmma_a_16", SM90::GMMA::ALayout_64x16{});
    print_tv("wgmma_a_8", SM90::GMMA::ALayout_64x32{});
    print_tv("wgmma_d_64", SM90::GMMA::CLayout_64x64{});
    print_tv("wgmma_d_256", SM90::GMMA::CLayout_64x256{});
    print_tv("ldmatrix", Copy_Traits<SM75_U32x1_LDSM_N>::DstLayout{});
    print_tv("ldmatrix_trans", Copy_Traits<SM75_U16x2_LDSM_T>::DstLayout{});

    GMMA_TILE(half_t, K, INTER, _16);
    GMMA_TILE(half_t, K, SW32, _16);
    GMMA_TILE(half_t, K, SW64, _16);
    GMMA_TILE(half_t, K, SW128, _16);
    GMMA_TILE(half_t, MN, INTER, _16);
    GMMA_TILE(half_t, MN, SW32, _16);
    GMMA_TILE(half_t, MN, SW64, _16);
    GMMA_TILE(half_t, MN, SW128, _16);
    GMMA_TILE(uint8_t, K, SW128, _32);
    UMMA_TILE(half_t, K, INTER, _16);
    UMMA_TILE(half_t, K, SW32, _16);
    UMMA_TILE(half_t, K, SW64, _16);
    UMMA_TILE(half_t, K, SW128, _16);
    UMMA_TILE(half_t, MN, INTER, _16);
    UMMA_TILE(half_t, MN, SW32, _16);
    UMMA_TILE(half_t, MN, SW64, _16);
    UMMA_TILE(half_t, MN, SW128, _16);

    print_load<SM100_TMEM_LOAD_32dp32b1x>("ld_32x32b_x1");
    print_load<SM100_TMEM_LOAD_32dp32b8x>("ld_32x32b_x8");
    print_load<SM100_TMEM_LOAD_16dp64b1x>("ld_16x64b_x1");
    print_load<SM100_TMEM_LOAD_16dp64b4x>("ld_16x64b_x4");
    print_load<SM100_TMEM_LOAD_16dp128b1x>("ld_16x128b_x1");
    print_load<SM100_TMEM_LOAD_16dp128b4x>("ld_16x128b_x4");
    print_load<SM100_TMEM_LOAD_16dp256b1x>("ld_16x256b_x1");
    print_load<SM100_TMEM_LOAD_16dp256b4x>("ld_16x256b_x4");
    print_load<SM100_TMEM_LOAD_16dp32b2x>("ld_16x32bx2_x2");
    print_copy<SM100_UTCCP_128dp256bit_1cta>("cp_128x256b");
    print_copy<SM100_UTCCP_128dp128bit_1cta>("cp_128x128b");
    print_copy<SM100_UTCCP_4x32dp128bit_1cta>("cp_32x128b_warpx4");
    print_copy<SM100_UTCCP_2x64dp128bitlw0213_1cta>("cp_64x128b_02_13");
    print_copy<SM100_UTCCP_2x64dp128bitlw0123_1cta>("cp_64x128b_01_23");
    print_accumulator<1, 64, 32>("acc_1_64_32");
    print_accumulator<1, 128, 64>("acc_1_128_64");
    print_accumulator<2, 128, 64>("acc_2_128_64");
    print_accumulator<2, 256, 64>("acc_2_256_64");
    return 0;
}
