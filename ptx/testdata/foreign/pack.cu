// Pairs and quadruples in registers.
extern "C" __global__ void pack(unsigned long long *out, const unsigned *a, int n) {
  int i = threadIdx.x;
  unsigned long long w;
  unsigned lo, hi, q;
  unsigned short s, t;
  asm("mov.b64 %0, {%1, %2};" : "=l"(w) : "r"(a[i]), "r"(a[i] ^ 7));
  asm("mov.b64 {%0, %1}, %2;" : "=r"(lo), "=r"(hi) : "l"(w * 3));
  asm("mov.b32 {%0, %1}, %2;" : "=h"(s), "=h"(t) : "r"(a[i]));
  asm("mov.b32 %0, {%1, %2};" : "=r"(q) : "h"(t), "h"(s));
  asm("{\n\t.reg .b16 low;\n\tmov.b32 {low, %0}, %1;\n\t}" : "=h"(s) : "r"(q + 5));
  unsigned d;
  asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(d) : "r"(lo), "r"(hi), "r"(i));
  out[i] = w + lo + hi + s + t + q + d;
}
