// CuTe's own layouts as lines of numbers, for the tests to compare with: "name: n n n ...". Compiled on the host
// against an installed CUTLASS; nothing of it is copied here.
#include <cstdio>

#include <cute/tensor.hpp>

using namespace cute;

/* A (thread, value) layout: index of value v of thread t, threads outermost. `bits`: of a value, if it counts bits. */
template <class Layout> void print_fragment(const char *name, Layout const &layout, int bits = 1)
{
    std::printf("%s:", name);
    for (int t = 0; t < size<0>(layout); t++) {
        for (int v = 0; v < size<1>(layout); v += bits)
            std::printf(" %d", int(layout(t, v)) / bits);
    }
    std::printf("\n");
}

/* The descriptor that CuTe makes of the first 16 columns of a tile of 16-bit elements in shared memory, and where those
 * lie, in bytes, rows (M or N) outermost. */
template <class Atom, class Rows, class MakeDescriptor>
void print_tile(const char *name, Atom const &atom, Rows rows, MakeDescriptor make)
{
    auto layout = tile_to_shape(atom, make_shape(rows, _128{}));
    auto offsets = as_position_independent_swizzle_layout(layout);
    auto tensor = make_tensor(make_smem_ptr(static_cast<half_t *>(nullptr)), layout);
    auto step = local_tile(tensor, make_shape(rows, _16{}), make_coord(0, 0));
    std::printf("%s: %llu", name, static_cast<unsigned long long>(make(step)));
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < 16; c++)
            std::printf(" %d", int(offsets(r, c)) * 2);
    }
    std::printf("\n");
}

#define TILE(name, unit, make, major, swizzle, rows)                                                    \
    print_tile(name " " #major " " #swizzle, unit::Layout_##major##_##swizzle##_Atom<half_t>{}, rows{}, \
               [](auto const &t) { return static_cast<uint64_t>(unit::make<unit::Major::major>(t)); })
#define TILES(swizzle)                                           \
    TILE("wgmma", SM90::GMMA, make_gmma_desc, K, swizzle, _64);  \
    TILE("wgmma", SM90::GMMA, make_gmma_desc, MN, swizzle, _64); \
    TILE("tcgen05", UMMA, make_umma_desc, K, swizzle, _128);     \
    TILE("tcgen05", UMMA, make_umma_desc, MN, swizzle, _128)

/* Tensor-memory loads: the bit address (lane * 2^21 + column * 32 + bit) of every 32nd bit of every thread. */
template <class Op> void print_load(const char *name, int repeat)
{
    using Traits = Copy_Traits<Op>;
    auto to_bits = typename Traits::DstLayout{};
    auto to_address = typename Traits::ValID{};
    std::printf("%s x%d:", name, repeat);
    for (int t = 0; t < 32; t++) {
        for (int v = 0; v < size<1>(to_bits); v += 32) {
            int address = to_address(int(to_bits(t, v)));
            std::printf(" %d %d", address >> 21, (address & ((1 << 21) - 1)) / 32);
        }
    }
    std::printf("\n");
}

#define LOADS(name, op)                            \
    print_load<SM100_TMEM_LOAD_##op##1x>(name, 1); \
    print_load<SM100_TMEM_LOAD_##op##4x>(name, 4)

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
template <int CTAS, int M, int N> void print_accumulator()
{
    auto tensor =
        UMMA::tmem_frg<float, float, CTAS>::make(make_shape(make_shape(Int<M / CTAS>{}, Int<N>{}), _1{}, _1{}));
    std::printf("accumulator %d %d %d:", CTAS, M, N);
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
    print_fragment("mma_a k8", MMA_Traits<SM80_16x8x8_F32F16F16F32_TN>::ALayout{});
    print_fragment("mma_b k8", MMA_Traits<SM80_16x8x8_F32F16F16F32_TN>::BLayout{});
    print_fragment("mma_a k16", MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>::ALayout{});
    print_fragment("mma_b k16", MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>::BLayout{});
    print_fragment("mma_d", MMA_Traits<SM80_16x8x16_F32F16F16F32_TN>::CLayout{});
    print_fragment("wgmma_a 16", SM90::GMMA::ALayout_64x16{});
    print_fragment("wgmma_a 8", SM90::GMMA::ALayout_64x32{});
    print_fragment("wgmma_d", SM90::GMMA::CLayout_64x256{});
    print_fragment("ldmatrix", Copy_Traits<SM75_U32x1_LDSM_N>::DstLayout{}, 16);
    print_fragment("ldmatrix trans", Copy_Traits<SM75_U16x2_LDSM_T>::DstLayout{}, 16);
    TILES(INTER);
    TILES(SW32);
    TILES(SW64);
    TILES(SW128);
    LOADS("32x32b", 32dp32b);
    LOADS("16x64b", 16dp64b);
    LOADS("16x128b", 16dp128b);
    LOADS("16x256b", 16dp256b);
    LOADS("16x32bx2", 16dp32b);
    print_copy<SM100_UTCCP_128dp256bit_1cta>("128x256b");
    print_copy<SM100_UTCCP_128dp128bit_1cta>("128x128b");
    print_copy<SM100_UTCCP_4x32dp128bit_1cta>("32x128b_warpx4");
    print_copy<SM100_UTCCP_2x64dp128bitlw0213_1cta>("64x128b_02_13");
    print_copy<SM100_UTCCP_2x64dp128bitlw0123_1cta>("64x128b_01_23");
    print_accumulator<1, 64, 32>();
    print_accumulator<1, 128, 64>();
    print_accumulator<2, 128, 64>();
    print_accumulator<2, 256, 64>();
    return 0;
}
