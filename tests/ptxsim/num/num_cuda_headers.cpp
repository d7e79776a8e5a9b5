// The CUDA headers' own conversions, on the host, for the tests to compare with.
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

namespace
{

template <class To, class From> To as(From value)
{
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

float f32(uint64_t code) { return as<float>(uint32_t(code)); }
__half_raw f16(uint64_t code) { return as<__half_raw>(uint16_t(code)); }
__nv_bfloat16_raw bf16(uint64_t code) { return as<__nv_bfloat16_raw>(uint16_t(code)); }

template <class T> void each(int64_t n, const uint64_t *in, uint64_t *out, T convert)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = convert(in[i]);
}

} // namespace

#define CONVERSION(name, ...)                                               \
    extern "C" void name(int64_t n, const uint64_t *in, uint64_t *out)      \
    {                                                                       \
        each(n, in, out, [](uint64_t x) { return uint64_t(__VA_ARGS__); }); \
    }

CONVERSION(f16_f32_rn, as<uint16_t>(__float2half_rn(f32(x))))
CONVERSION(f16_f32_rz, as<uint16_t>(__float2half_rz(f32(x))))
CONVERSION(f16_f32_rm, as<uint16_t>(__float2half_rd(f32(x))))
CONVERSION(f16_f32_rp, as<uint16_t>(__float2half_ru(f32(x))))
CONVERSION(bf16_f32_rn, as<uint16_t>(__float2bfloat16_rn(f32(x))))
CONVERSION(bf16_f32_rz, as<uint16_t>(__float2bfloat16_rz(f32(x))))
CONVERSION(bf16_f32_rm, as<uint16_t>(__float2bfloat16_rd(f32(x))))
CONVERSION(bf16_f32_rp, as<uint16_t>(__float2bfloat16_ru(f32(x))))
CONVERSION(f16_f64_rn, as<uint16_t>(__double2half(as<double>(x))))
CONVERSION(bf16_f64_rn, as<uint16_t>(__double2bfloat16(as<double>(x))))
CONVERSION(f32_f16, as<uint32_t>(__half2float(__half(f16(x)))))
CONVERSION(f32_bf16, as<uint32_t>(__bfloat162float(__nv_bfloat16(bf16(x)))))

CONVERSION(e4m3_f32_satfinite, __nv_cvt_float_to_fp8(f32(x), __NV_SATFINITE, __NV_E4M3))
CONVERSION(e5m2_f32_satfinite, __nv_cvt_float_to_fp8(f32(x), __NV_SATFINITE, __NV_E5M2))
CONVERSION(e4m3_f32, __nv_cvt_float_to_fp8(f32(x), __NV_NOSAT, __NV_E4M3))
CONVERSION(e5m2_f32, __nv_cvt_float_to_fp8(f32(x), __NV_NOSAT, __NV_E5M2))
CONVERSION(e4m3_f16_satfinite, __nv_cvt_halfraw_to_fp8(f16(x), __NV_SATFINITE, __NV_E4M3))
CONVERSION(e5m2_f16_satfinite, __nv_cvt_halfraw_to_fp8(f16(x), __NV_SATFINITE, __NV_E5M2))
CONVERSION(e4m3_bf16_satfinite, __nv_cvt_bfloat16raw_to_fp8(bf16(x), __NV_SATFINITE, __NV_E4M3))
CONVERSION(e5m2_bf16_satfinite, __nv_cvt_bfloat16raw_to_fp8(bf16(x), __NV_SATFINITE, __NV_E5M2))
CONVERSION(f16_e4m3, as<uint16_t>(__nv_cvt_fp8_to_halfraw(uint8_t(x), __NV_E4M3)))
CONVERSION(f16_e5m2, as<uint16_t>(__nv_cvt_fp8_to_halfraw(uint8_t(x), __NV_E5M2)))

CONVERSION(e2m1_f32_satfinite, __nv_cvt_float_to_fp4(f32(x), __NV_E2M1, cudaRoundNearest))
CONVERSION(e2m1_f16_satfinite, __nv_cvt_halfraw_to_fp4(f16(x), __NV_E2M1, cudaRoundNearest))
CONVERSION(e2m1_bf16_satfinite, __nv_cvt_bfloat16raw_to_fp4(bf16(x), __NV_E2M1, cudaRoundNearest))
CONVERSION(f16_e2m1, as<uint16_t>(__nv_cvt_fp4_to_halfraw(uint8_t(x), __NV_E2M1)))
