// A sum in shared memory.
extern "C" __global__ void reduce(float *out, const float *a, int n) {
  __shared__ float sums[128];
  int t = threadIdx.x;
  float s = 0;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) s += a[i];
  sums[t] = s;
  __syncthreads();
  for (int d = 64; d > 0; d /= 2) {
    if (t < d) sums[t] += sums[t + d];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = sums[0];
}
