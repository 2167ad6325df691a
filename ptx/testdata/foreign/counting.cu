// Barriers that count and decide, barriers of some warps.
extern "C" __global__ void counting(int *out, const int *a, int n) {
  int i = threadIdx.x;
  int r = __syncthreads_count(a[i] > 0) + 1000 * __syncthreads_or(a[i] > 900) + 2000 * __syncthreads_and(a[i] < 1000);
  if (i < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
  else asm volatile("barrier.sync 2, 64;" ::: "memory");
  out[i] = r;
}
