// Loops, breaks, a switch with a table of jumps.
extern "C" __global__ void jumps(int *out, const int *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  int x = a[i], r = 0;
  switch (x & 7) {
    case 0: r = x * 3; break;
    case 1: r = x - 7; break;
    case 2: r = x ^ 0x55; break;
    case 3: r = x / 3; break;
    case 4: r = -x; break;
    case 5: r = x << 3; break;
    case 6: for (int k = 0; k < i; k++) { if (k == 11) break; r += k * x; } break;
    default: r = 1000;
  }
  while (r > 100 && (r & 1) == 0) r /= 2;
  out[i] = r;
}
