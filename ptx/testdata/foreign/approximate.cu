// Approximate functions of single precision.
extern "C" __global__ void approximate(float *out, const float *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = a[i];
  out[8 * i] = __expf(x);
  out[8 * i + 1] = __logf(x * x + 1);
  out[8 * i + 2] = __sinf(x);
  out[8 * i + 3] = __cosf(x);
  out[8 * i + 4] = rsqrtf(x * x + 1);
  out[8 * i + 5] = __fdividef(x, 3 + x * x);
  out[8 * i + 6] = __powf(2 + x * x, x);
  out[8 * i + 7] = __tanhf(x);
}
