// Blocks and grids of three dimensions.
extern "C" __global__ void __launch_bounds__(24) solid(unsigned *out) {
  unsigned t = threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z;
  unsigned b = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z;
  unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[cta * 24 + linear] = t + 1000 * b;
}
