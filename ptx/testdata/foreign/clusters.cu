// Clusters of two dimensions, and distributed shared memory.
extern "C" __global__ void __cluster_dims__(2, 2, 1) clusters(unsigned *out) {
  __shared__ unsigned mine[4];
  unsigned rank, x, y, cx, cy, nx, ny;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(y));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(cx));
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(cy));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(nx));
  asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(ny));
  if (threadIdx.x < 4) mine[threadIdx.x] = 100 * rank + threadIdx.x;
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned here = (unsigned)__cvta_generic_to_shared(mine), there, v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"((rank + 1) & 3));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(there + 4 * (threadIdx.x & 3)) : "memory");
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
  int cta = blockIdx.y * gridDim.x + blockIdx.x;
  out[cta * 32 + threadIdx.x] = v + 1000 * (x + 2 * y + 4 * cx + 16 * cy) + 1000000 * (nx + 10 * ny);
}
