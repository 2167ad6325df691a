// An mbarrier whose phases are waited for by state.
extern "C" __global__ void phases(int *out, const int *a, int n) {
  __shared__ __align__(8) unsigned long long bar;
  __shared__ int stage[64];
  int t = threadIdx.x;
  unsigned b = (unsigned)__cvta_generic_to_shared(&bar);
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(64) : "memory");
  __syncthreads();
  int sum = 0;
  for (int k = 0; k < n; k++) {
    stage[t] = a[64 * k + t];
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
    unsigned done = 0;
    while (!done)
      asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(b), "l"(state) : "memory");
    sum += stage[(t + k + 1) & 63];
    __syncthreads();
  }
  out[t] = sum;
}
