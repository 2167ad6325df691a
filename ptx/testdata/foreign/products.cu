// High halves, 24 bits, sums of absolute differences, dot products of bytes.
extern "C" __global__ void products(unsigned long long *out, const long long *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  long long x = a[i], y = a[(i + 3) % n];
  unsigned long long r = __umul64hi(x, y) + __mul64hi(x, y);
  r += __umulhi((unsigned)x, (unsigned)y) + (long long)__mulhi((int)x, (int)y);
  r += __umul24((unsigned)x, (unsigned)y) + (long long)__mul24((int)x, (int)y);
  r += __usad((unsigned)x, (unsigned)y, 5) + __sad((int)x, (int)y, 7u);
  r += __dp4a((unsigned)x, (unsigned)y, 3u) + (long long)__dp4a((int)x, (int)y, -3);
  r += (long long)(int)x * (int)y + (unsigned long long)(unsigned)x * (unsigned)y + x * y;
  r += __hadd((int)x, (int)y) + __uhadd((unsigned)x, (unsigned)y) + __rhadd((int)x, (int)y);
  out[i] = r;
}
