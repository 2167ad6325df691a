// Sparse products: of each four numbers of a row of A the two largest stay, with
// metadata that say which they are.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Keeps the two largest of four; the result is the metadata's four bits.
template <class T> __device__ unsigned prune(const T *a, T &first, T &second) {
  int top = 0, next = -1;
  for (int i = 1; i < 4; i++) {
    if (fabsf(float(a[i])) > fabsf(float(a[top]))) {
      next = top;
      top = i;
    } else if (next < 0 || fabsf(float(a[i])) > fabsf(float(a[next]))) {
      next = i;
    }
  }
  int low = min(top, next), high = max(top, next);
  first = a[low];
  second = a[high];
  return low | high << 2;
}

// out = a*b + out: 16x8 sums over k, a by rows, b by columns; one warp.
extern "C" __global__ void sparse_mma(float *out, const __half *a, const __half *b, int k) {
  int lane = threadIdx.x, group = lane / 4, in_group = lane % 4;
  float d[4];
  for (int i = 0; i < 4; i++) d[i] = out[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2];
#pragma unroll 1
  for (int at = 0; at < k; at += 32) {
    __half2 fa[4], fb[4];
    unsigned metadata = 0;
    for (int i = 0; i < 4; i++) {  // row group + 8*(i%2), chunk in_group + 4*(i/2)
      unsigned nibble = prune(a + (group + i % 2 * 8) * k + at + (in_group + i / 2 * 4) * 4, fa[i].x, fa[i].y);
      unsigned half = 0;
      for (int t = 0; t < 4; t++) half |= __shfl_sync(~0u, nibble, t, 4) << (4 * t);
      if (in_group == 2 + i / 2) metadata |= half << (i % 2 * 16);
      fb[i] = *(const __half2 *)(b + group * k + at + i * 8 + in_group * 2);
    }
    const unsigned *ra = (const unsigned *)fa, *rb = (const unsigned *)fb;
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]), "r"(rb[2]), "r"(rb[3]), "r"(metadata));
  }
  for (int i = 0; i < 4; i++) out[(group + i / 2 * 8) * 8 + in_group * 2 + i % 2] = d[i];
}

// out = a*b: 64x8 sums over 64, a by rows, b by columns; a warpgroup.
extern "C" __global__ void sparse_wgmma(float *out, const __nv_bfloat16 *a, const __nv_bfloat16 *b) {
  constexpr int depth = 64, steps = 2;
  __shared__ __align__(128) __nv_bfloat16 ta[steps][64 * 16], tb[steps][8 * 32];
  int thread = threadIdx.x, row = thread / 32 * 16 + thread % 32 / 4;
  __nv_bfloat16 first, second;
#pragma unroll 1
  for (int i = thread; i < 64 * depth / 4; i += 128) {  // chunk by chunk, into matrices of 8 rows by 16 bytes
    int r = i % 64, chunk = i / 64, k = chunk * 2 % 16;
    prune(a + r * depth + chunk * 4, first, second);
    __nv_bfloat16 *to = &ta[chunk / 8][r / 8 * 128 + k / 8 * 64 + r % 8 * 8 + k % 8];
    to[0] = first;
    to[1] = second;
  }
#pragma unroll 1
  for (int i = thread; i < 8 * depth; i += 128) {
    int c = i / depth, k = i % depth;
    tb[k / 32][k % 32 / 8 * 64 + c * 8 + k % 8] = b[i];
  }
  unsigned metadata[steps] = {};
  for (int step = 0; step < steps; step++)
    if (thread % 4 < 2)
#pragma unroll 1
      for (int i = 0; i < 8; i++) metadata[step] |= prune(a + (row + i / 4 * 8) * depth + step * 32 + thread % 4 * 16 + i % 4 * 4, first, second) << (4 * i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
  for (int step = 0; step < steps; step++) {
    auto descriptor = [](const void *p, unsigned leading, unsigned stride) {
      return (unsigned long long)(__cvta_generic_to_shared(p) >> 4) | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32;
    };
    asm volatile("{.reg .pred p; setp.ne.b32 p, %7, 0; wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, %6, 0, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(descriptor(ta[step], 128, 256)), "l"(descriptor(tb[step], 128, 256)), "r"(metadata[step]), "r"(step));
  }
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
  for (int i = 0; i < 4; i++) out[(row + i / 2 * 8) * 8 + thread % 4 * 2 + i % 2] = d[i];
}
