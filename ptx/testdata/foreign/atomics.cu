// Atomics of global memory.
extern "C" __global__ void atomics(int *out, unsigned long long *wide, float *f, double *d, const int *a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = a[i];
  atomicAdd(&out[0], x);
  atomicMin(&out[1], x);
  atomicMax(&out[2], x);
  atomicAnd(&out[3], x);
  atomicOr(&out[4], x);
  atomicXor(&out[5], x);
  atomicSub(&out[6], x);
  atomicInc((unsigned *)&out[7], 1000);
  atomicDec((unsigned *)&out[8], 10);
  atomicAdd(&wide[0], (unsigned long long)x);
  atomicMax(&wide[1], (unsigned long long)x);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  int old = out[9], seen;
  do {
    seen = old;
    old = atomicCAS(&out[9], seen, seen + x * 2);
  } while (old != seen);
  if (i == 7) out[10] = atomicExch(&out[11], 77);
}
