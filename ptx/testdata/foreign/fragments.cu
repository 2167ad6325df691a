// Products of fragments by wmma: halves, brain floats and bytes, through shared
// memory too, and a fragment scaled element by element.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// out = 2*a*b + c: 32x32 sums over k, a row, b and c by columns; a warp a tile.
extern "C" __global__ void fragments_halves(float *out, const __half *a, const __half *b, const float *c, int k) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, more;
  int row = threadIdx.x / 32 % 2 * 16, column = threadIdx.x / 64 * 16;
  wmma::fill_fragment(sum, 0.0f);
  for (int i = 0; i < k; i += 16) {
    wmma::load_matrix_sync(fa, a + row * k + i, k);
    wmma::load_matrix_sync(fb, b + column * k + i, k);
    wmma::mma_sync(sum, fa, fb, sum);
  }
  wmma::load_matrix_sync(more, c + column * 32 + row, 32, wmma::mem_col_major);
  for (int i = 0; i < sum.num_elements; i++) sum.x[i] = 2 * sum.x[i] + more.x[i];
  wmma::store_matrix_sync(out + row * 32 + column, sum, 32, wmma::mem_row_major);
}

// out = a*b of 8x32 brain floats over 16, and of 32x8 bytes, from shared memory.
extern "C" __global__ void fragments_shared(float *out, int *counts, const __nv_bfloat16 *a, const __nv_bfloat16 *b, const unsigned char *c, const unsigned char *d) {
  __shared__ __align__(32) __nv_bfloat16 ta[8 * 16], tb[16 * 32];
  __shared__ __align__(32) int sums[32 * 8];
  for (int i = threadIdx.x; i < 8 * 16; i += 32) ta[i] = a[i];
  for (int i = threadIdx.x; i < 16 * 32; i += 32) tb[i] = b[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 8, 32, 16, __nv_bfloat16, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 8, 32, 16, __nv_bfloat16, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 8, 32, 16, float> sum;
  wmma::fill_fragment(sum, 1.0f);
  wmma::load_matrix_sync(fa, ta, 16);
  wmma::load_matrix_sync(fb, tb, 32);
  wmma::mma_sync(sum, fa, fb, sum);
  wmma::store_matrix_sync(out, sum, 32, wmma::mem_row_major);
  wmma::fragment<wmma::matrix_a, 32, 8, 16, unsigned char, wmma::col_major> fc;
  wmma::fragment<wmma::matrix_b, 32, 8, 16, unsigned char, wmma::col_major> fd;
  wmma::fragment<wmma::accumulator, 32, 8, 16, int> count;
  wmma::fill_fragment(count, 0);
  wmma::load_matrix_sync(fc, c, 32);
  wmma::load_matrix_sync(fd, d, 16);
  wmma::mma_sync(count, fc, fd, count);
  wmma::store_matrix_sync(sums, count, 8, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; i < 32 * 8; i += 32) counts[i] = sums[i];
}
