// Shuffles of all kinds, of 32 and 64 bits.
extern "C" __global__ void shuffles(float *out, const float *a, int n) {
  int i = threadIdx.x;
  float x = i < n ? a[i] : 0;
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffff, x, d);
  x += __shfl_up_sync(0xffffffff, x + i, 1) * 0.5f + __shfl_down_sync(0xffffffff, x - i, 2, 8);
  x += __shfl_sync(0xffffffff, x, i & 3, 4);
  out[i] = x;
}
extern "C" __global__ void shuffles64(double *out, const double *a, int n) {
  int i = threadIdx.x;
  double x = i < n ? a[i] : 0;
  for (int d = 16; d > 0; d /= 2) x += __shfl_down_sync(0xffffffff, x, d);
  out[i] = __shfl_sync(0xffffffff, x, 0);
}
