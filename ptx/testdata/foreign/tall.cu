// A cluster along y.
extern "C" __global__ void __cluster_dims__(1, 2, 1) tall(unsigned *out) {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = rank;
}
