// Floats of eight bits.
#include <cuda_fp8.h>
extern "C" __global__ void eights(unsigned char *out, const float *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  out[2 * i] = __nv_cvt_float_to_fp8(a[i], __NV_SATFINITE, __NV_E4M3);
  out[2 * i + 1] = __nv_cvt_float_to_fp8(a[i], __NV_SATFINITE, __NV_E5M2);
}
extern "C" __global__ void uneights(float *out, const unsigned char *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  out[2 * i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(a[i], __NV_E4M3)));
  out[2 * i + 1] = __half2float(__half(__nv_cvt_fp8_to_halfraw(a[i], __NV_E5M2)));
}
