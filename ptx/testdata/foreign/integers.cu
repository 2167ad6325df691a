// Between floats and integers, every direction.
extern "C" __global__ void integers(long long *out, const float *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = a[i] * 1000;
  long long r = __float2int_rn(x) + 3 * __float2int_rz(x) + 5 * __float2int_ru(x) + 7 * __float2int_rd(x);
  r += __float2uint_rn(x) + __float2ll_rn(x) + (long long)__float2ull_rz(x);
  r += (signed char)x + (unsigned short)(x + 3000) + (short)x;
  r += (long long)(__ll2float_rn(r) + __ull2float_rz(r) + __int2float_ru((int)r) + __uint2float_rd((unsigned)r));
  out[i] = r;
}
