// wgmma of bf16 with A in registers.
extern "C" __global__ void __launch_bounds__(128) warpgroup(float *out, const unsigned *a, const unsigned short *b) {
  __shared__ __align__(128) unsigned short sb[16 * 8];
  int t = threadIdx.x;
  sb[t] = b[t];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned at = (unsigned)__cvta_generic_to_shared(sb);
  unsigned long long desc = (at & 0x3ffff) >> 4 | (unsigned long long)(128 >> 4) << 16 | (unsigned long long)(256 >> 4) << 32;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("wgmma.fence.sync.aligned;" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)::"memory");
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %9, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n\t}"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a[4 * t]), "r"(a[4 * t + 1]), "r"(a[4 * t + 2]), "r"(a[4 * t + 3]), "l"(desc), "r"(0));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)::"memory");
  out[4 * t] = d0;
  out[4 * t + 1] = d1;
  out[4 * t + 2] = d2;
  out[4 * t + 3] = d3;
}
