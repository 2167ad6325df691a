// Votes, matches, reductions, masks of active lanes.
extern "C" __global__ void votes(unsigned *out, const unsigned *a, int n) {
  int i = threadIdx.x;
  unsigned x = a[i], r = __ballot_sync(0xffffffff, x & 1);
  r += __any_sync(0xffffffff, x > 900) + 2 * __all_sync(0xffffffff, x < 1000) + 4 * __uni_sync(0xffffffff, x & 1);
  r ^= __match_any_sync(0xffffffff, x & 3);
  int all;
  r ^= __match_all_sync(0xffffffff, x >> 20, &all) + all;
  r += __reduce_add_sync(0xffffffff, x) + __reduce_max_sync(0xffffffff, x) + __reduce_and_sync(0xffffffff, x) + __reduce_xor_sync(0xffffffff, x);
  r += __reduce_min_sync(0xffffffff, (int)x) + __reduce_or_sync(0xffffffff, x);
  if (x & 1) r += __activemask();
  __syncwarp();
  unsigned lt, ge, lane;
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(lt));
  asm("mov.u32 %0, %%lanemask_gt;" : "=r"(ge));
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  out[i] = r + lt + (ge & 7) + lane;
}
