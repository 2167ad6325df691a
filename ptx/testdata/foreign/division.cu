// Division and remainder of all widths, by zero nowhere.
extern "C" __global__ void division(long long *out, const long long *a, const long long *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  long long x = a[i], y = b[i];
  unsigned long long ux = x, uy = y;
  int sx = x, sy = (int)y | 1;
  unsigned vx = x, vy = (unsigned)y | 1;
  unsigned short hx = x, hy = (unsigned short)y | 1;
  signed char cx = x, cy = (signed char)((y & 63) + 1);
  out[i] = x / y + x % y + (long long)(ux / uy + ux % uy) + sx / sy + sx % sy + vx / vy + vx % vy + hx / hy + hx % hy + cx / cy + cx % cy;
}
