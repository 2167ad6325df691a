// Scopes, orders, and atomics without a result.
extern "C" __global__ void scoped(unsigned *out, const unsigned *a, int n) {
  int i = threadIdx.x;
  atomicAdd_block(&out[0], a[i]);
  atomicAdd_system(&out[1], a[i]);
  unsigned r;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(&out[2]), "r"(1) : "memory");
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&out[3]), "r"(r) : "memory");
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(&out[4]), "r"(a[i]) : "memory");
  __threadfence();
  __threadfence_block();
  __threadfence_system();
  unsigned v;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(&a[i]) : "memory");
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&out[5 + i]), "r"(v) : "memory");
}
