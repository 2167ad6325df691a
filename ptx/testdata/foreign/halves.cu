// Half precision.
#include <cuda_fp16.h>
extern "C" __global__ void halves(__half *out, const __half *a, const __half *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  __half x = a[i], y = b[i];
  __half r = __hadd(__hmul(x, y), __hsub(x, y));
  r = __hfma(r, x, y);
  r = __hmax(r, __hneg(__habs(x)));
  r = __hlt(x, y) ? r : __hmin(r, y);
  out[i] = __hadd(r, __float2half(0.5f * __half2float(x)));
}
extern "C" __global__ void halfpairs(__half2 *out, const __half2 *a, const __half2 *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  __half2 x = a[i], y = b[i];
  __half2 r = __hfma2(x, y, __hadd2(x, y));
  r = __hmul2(r, __hsub2(y, x));
  r = __hmax2(r, __hmin2(x, y));
  float2 f = __half22float2(r);
  out[i] = __floats2half2_rn(f.y, f.x);
}
