// Each block of 64 threads adds its 64 numbers, with a barrier forgotten: the
// second warp's numbers may not be there when the first adds them.
__global__ void sum(const unsigned *in, unsigned *out) {
  __shared__ unsigned part[64];
  unsigned t = threadIdx.x;
  part[t] = in[blockIdx.x * 64 + t];
  // __syncthreads();
  if (t == 0) {
    unsigned s = 0;
    for (int i = 0; i < 64; i++)
      s += part[i];
    out[blockIdx.x] = s;
  }
}
