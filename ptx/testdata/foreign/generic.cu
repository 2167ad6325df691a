// Generic addresses: shared, global or a thread's own memory, chosen at run time.
extern "C" __global__ void generic(float *out, const float *a, int n) {
  __shared__ float s[64];
  float own[8];
  int t = threadIdx.x;
  for (int i = 0; i < 8; i++) own[(i + t) & 7] = a[t] + i;
  s[t] = 2 * a[t];
  __syncthreads();
  const float *p = t % 3 == 0 ? &s[63 - t] : t % 3 == 1 ? &a[t] : &own[t & 7];
  out[t] = *p + own[(t >> 1) & 7] + (__isShared(p) ? 100 : 0) + (__isGlobal(p) ? 1000 : 0);
}
