// Bit fields by inline assembly.
extern "C" __global__ void fields(unsigned *out, const unsigned *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  unsigned u, v;
  int s;
  unsigned long long w;
  asm("bfe.u32 %0, %1, %2, 9;" : "=r"(u) : "r"(a[i]), "r"(i));
  asm("bfe.s32 %0, %1, 3, %2;" : "=r"(s) : "r"(a[i]), "r"(i));
  asm("bfi.b32 %0, %1, %2, 7, 5;" : "=r"(v) : "r"(a[i]), "r"(u));
  asm("bfe.u64 %0, %1, 13, 40;" : "=l"(w) : "l"((unsigned long long)a[i] << 20));
  unsigned t, f;
  asm("bfind.u32 %0, %1;" : "=r"(t) : "r"(a[i]));
  asm("bfind.shiftamt.u32 %0, %1;" : "=r"(f) : "r"(a[i]));
  unsigned l;
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(l) : "r"(a[i]), "r"(u), "r"(v));
  out[i] = u + s + v + (unsigned)(w ^ w >> 32) + t + f + l;
}
