// One lane of each warp, a register of the warp's number, clocks.
extern "C" __global__ void elect(unsigned *out) {
  unsigned p, lane, warp, nwarp;
  asm volatile("{\n\t.reg .pred e;\n\telect.sync %1|e, 0xffffffff;\n\tselp.b32 %0, 1, 0, e;\n\t}" : "=r"(p), "=r"(lane));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(nwarp));
  long long before = clock64();
  unsigned c = clock();
  out[threadIdx.x] = p + 10 * lane + (clock64() > before ? 100 : 0) + (c != 0 ? 1000 : 0) + (nwarp > warp ? 10000 : 0);
}
