// Every direction of rounding.
extern "C" __global__ void rounding(float *out, const float *a, const float *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i];
  out[8 * i] = __fadd_ru(x, y);
  out[8 * i + 1] = __fadd_rd(x, y);
  out[8 * i + 2] = __fmul_rz(x, y);
  out[8 * i + 3] = __fmul_ru(x, y);
  out[8 * i + 4] = __fmaf_rd(x, y, x);
  out[8 * i + 5] = __fmaf_rz(x, y, x);
  out[8 * i + 6] = __fdiv_rz(x, y);
  out[8 * i + 7] = __fsqrt_ru(fabsf(x));
}
