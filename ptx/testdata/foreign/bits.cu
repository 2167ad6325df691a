// Counting, finding, reversing and moving bits.
extern "C" __global__ void bits(unsigned *out, const unsigned *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  unsigned x = a[i], y = a[(i + 1) % n];
  unsigned r = __popc(x) + 100 * __clz(x) + __ffs(x) * 10000;
  r ^= __brev(x);
  r += __byte_perm(x, y, 0x2541);
  r ^= __funnelshift_l(x, y, i) + __funnelshift_r(x, y, 5);
  r ^= (x >> 5 & 0x7f) + (x << 20 >> 25);
  out[i] = r;
}
extern "C" __global__ void bits64(unsigned long long *out, const unsigned long long *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  unsigned long long x = a[i];
  out[i] = __popcll(x) + 100 * __clzll(x) + __ffsll(x) * 10000ull + (__brevll(x) ^ (x << i | x >> (64 - i)));
}
