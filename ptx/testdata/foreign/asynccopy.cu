// cp.async of 4, 8 and 16 bytes.
extern "C" __global__ void asynccopy(float *out, const float *a, int n) {
  __shared__ __align__(16) float tile[4 * 64];
  int t = threadIdx.x;
  unsigned s = (unsigned)__cvta_generic_to_shared(&tile[4 * t]);
  if (t % 3 == 0) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s), "l"(&a[4 * t]) : "memory");
  } else if (t % 3 == 1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(s), "l"(&a[4 * t]) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, 4;" ::"r"(s + 8), "l"(&a[4 * t + 2]) : "memory");
  } else {
    for (int k = 0; k < 4; k++) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(s + 4 * k), "l"(&a[4 * t + k]) : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int k = 0; k < 4; k++) out[4 * t + k] = tile[4 * (63 - t) + k];
}
