// Functions of the library: loops, tables and slow paths.
extern "C" __global__ void library(float *out, const float *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = a[i];
  out[8 * i] = expf(x);
  out[8 * i + 1] = logf(x * x + 1);
  out[8 * i + 2] = sinf(100000 * x);
  out[8 * i + 3] = cosf(x);
  out[8 * i + 4] = tanhf(x);
  out[8 * i + 5] = erff(x);
  out[8 * i + 6] = powf(2 + x * x, x);
  out[8 * i + 7] = fmodf(1000 * x, 3);
}
