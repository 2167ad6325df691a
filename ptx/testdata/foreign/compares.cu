// Compressed comparisons: set and slct, testp, and decimal numbers.
extern "C" __global__ void compares(float *out, const float *a, const float *b, int n) {
  int i = threadIdx.x;
  float x = a[i], y = b[i], r, s;
  unsigned m, q;
  asm("set.lt.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  asm("set.ge.u32.f32 %0, %1, %2;" : "=r"(m) : "f"(x), "f"(y));
  asm("slct.f32.s32 %0, %1, %2, %3;" : "=f"(s) : "f"(x), "f"(y), "r"(i - 16));
  asm("{\n\t.reg .pred p, q;\n\tsetp.gt.and.f32 p|q, %1, 0.5, 1;\n\tselp.u32 %0, 3, 4, q;\n\t@p add.u32 %0, %0, 10;\n\t}" : "=r"(q) : "f"(x));
  asm("add.f32 %0, %1, 1.25e1;" : "=f"(x) : "f"(x));
  out[i] = r + (m & 1) + s + q + x;
}
