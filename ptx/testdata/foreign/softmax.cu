// A row's softmax by warps.
extern "C" __global__ void softmax(float *out, const float *a, int n) {
  const float *x = a + blockIdx.x * n;
  float m = -1e30f, s = 0;
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, x[i]);
  for (int d = 16; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, d));
  for (int i = threadIdx.x; i < n; i += 32) s += expf(x[i] - m);
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffff, s, d);
  for (int i = threadIdx.x; i < n; i += 32) out[blockIdx.x * n + i] = expf(x[i] - m) / s;
}
