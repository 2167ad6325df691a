// mma.sync of fp16 and bf16, with ldmatrix.
#include <cuda_fp16.h>
extern "C" __global__ void mma16(float *out, const __half *a, const __half *b) {
  __shared__ __align__(16) __half sa[16 * 16], sb[16 * 8];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 32) sa[i] = a[i];
  for (int i = t; i < 128; i += 32) sb[i] = b[i];
  __syncwarp();
  unsigned ra[4], rb[2];
  unsigned pa = (unsigned)__cvta_generic_to_shared(&sa[(t & 15) * 16 + (t >> 4) * 8]);
  unsigned pb = (unsigned)__cvta_generic_to_shared(&sb[(t & 15) * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%0, %1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb) : "memory");
  float d[4] = {1, 2, 3, 4};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int row = t / 4, col = t % 4 * 2;
  out[row * 8 + col] = d[0];
  out[row * 8 + col + 1] = d[1];
  out[(row + 8) * 8 + col] = d[2];
  out[(row + 8) * 8 + col + 1] = d[3];
}
