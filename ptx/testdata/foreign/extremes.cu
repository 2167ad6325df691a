// Smallest, largest, absolute and negated values, saturation.
extern "C" __global__ void extremes(long long *out, const long long *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  long long x = a[i], y = a[(i + 1) % n];
  int s = x, t = y, sum, diff;
  asm("add.sat.s32 %0, %1, %2;" : "=r"(sum) : "r"(s), "r"(t));
  asm("sub.sat.s32 %0, %1, %2;" : "=r"(diff) : "r"(s), "r"(t));
  long long r = min(x, y) + max(x, -y) + llabs(x) + abs(s) + min(s, t) + max((unsigned)s, (unsigned)t);
  r += (unsigned long long)x > (unsigned long long)y ? 3 : -5;
  r ^= (long long)sum << 3 ^ diff;
  short h = s, g = t;
  r += max(h, g) - min(h, g);
  out[i] = r;
}
