// bfloat16.
#include <cuda_bf16.h>
extern "C" __global__ void brains(__nv_bfloat16 *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  __nv_bfloat16 x = a[i], y = b[i];
  __nv_bfloat16 r = __hfma(x, y, x);
  r = __hadd(r, __hmul(y, y));
  r = __hsub(r, __hmax(x, y));
  out[i] = __hgt(x, y) ? r : __float2bfloat16(__bfloat162float(x) * 3);
}
extern "C" __global__ void brainpairs(__nv_bfloat162 *out, const __nv_bfloat162 *a, const __nv_bfloat162 *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  out[i] = __hadd2(__hfma2(a[i], b[i], a[i]), __hmax2(a[i], __hneg2(b[i])));
}
