// A sort in shared memory.
extern "C" __global__ void bitonic(unsigned *out, const unsigned *a) {
  __shared__ unsigned v[128];
  unsigned t = threadIdx.x;
  v[t] = a[t];
  for (unsigned k = 2; k <= 128; k *= 2)
    for (unsigned j = k / 2; j > 0; j /= 2) {
      __syncthreads();
      unsigned o = t ^ j;
      if (o > t && (v[t] > v[o]) == ((t & k) == 0)) {
        unsigned x = v[t];
        v[t] = v[o];
        v[o] = x;
      }
    }
  __syncthreads();
  out[t] = v[t];
}
