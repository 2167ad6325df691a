// Mean and deviation of a row.
extern "C" __global__ void layernorm(float *out, const float *a, int n) {
  __shared__ float part[2][4];
  const float *x = a + blockIdx.x * n;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < n; i += 128) s += x[i], q += x[i] * x[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_down_sync(~0u, s, d), q += __shfl_down_sync(~0u, q, d);
  if (threadIdx.x % 32 == 0) part[0][threadIdx.x / 32] = s, part[1][threadIdx.x / 32] = q;
  __syncthreads();
  s = part[0][0] + part[0][1] + part[0][2] + part[0][3];
  q = part[1][0] + part[1][1] + part[1][2] + part[1][3];
  float mean = s / n, r = rsqrtf(q / n - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < n; i += 128) out[blockIdx.x * n + i] = (x[i] - mean) * r;
}
