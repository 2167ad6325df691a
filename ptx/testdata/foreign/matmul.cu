// A product by tiles of 16.
extern "C" __global__ void matmul(float *c, const float *a, const float *b, int n) {
  __shared__ float ta[16][16], tb[16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  float s = 0;
  for (int k = 0; k < n; k += 16) {
    ta[y][x] = a[row * n + k + x];
    tb[y][x] = b[(k + y) * n + col];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) s += ta[y][i] * tb[i][x];
    __syncthreads();
  }
  c[row * n + col] = s;
}
