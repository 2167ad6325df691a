// Double precision.
extern "C" __global__ void doubles(double *out, const double *a, const double *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  double x = a[i], y = b[i];
  double r = x * y + 1.5;
  r += x / y - sqrt(fabs(x));
  r += fmin(x, y) - fmax(x, y) + floor(x) + rint(y) + (x < y ? x : 2 * y);
  r += (double)(float)x + (double)(int)y + (double)(long long)x + (double)(unsigned)fabs(y);
  r += copysign(x, y) + __dadd_rz(x, y) + __fma_rn(x, y, x) + -x;
  out[i] = r;
}
extern "C" __global__ void doublebits(long long *out, const double *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  double x = a[i];
  out[i] = __double_as_longlong(x) ^ __double2loint(x) ^ (long long)__double2hiint(x) << 7 ^ __double2ll_rn(x) ^ (isnan(x) ? 1 : 0);
}
