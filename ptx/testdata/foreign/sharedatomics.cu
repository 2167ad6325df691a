// A histogram by atomics of shared memory.
extern "C" __global__ void histogram(unsigned *out, const unsigned char *a, int n) {
  __shared__ unsigned bins[64];
  __shared__ float total;
  int t = threadIdx.x;
  bins[t] = 0;
  if (t == 0) total = 0;
  __syncthreads();
  for (int i = t; i < n; i += 64) {
    atomicAdd(&bins[a[i] & 63], 1);
    atomicAdd(&total, 1.0f);
  }
  __syncthreads();
  atomicAdd(&out[t], bins[t]);
  if (t == 0) out[64] = (unsigned)total;
}
