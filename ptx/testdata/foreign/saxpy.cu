// Single precision with the compiler's own contractions.
extern "C" __global__ void saxpy(float *out, const float *a, const float *b, float alpha, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = alpha * a[i] + b[i];
}
extern "C" __global__ void arithmetic(float *out, const float *a, const float *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i];
  float r = x / y + sqrtf(fabsf(x)) - __fmul_rn(x, y) + __fadd_rz(x, y) + __fsub_rn(x, y);
  r += fminf(x, y) * fmaxf(x, y) + copysignf(x, y) + floorf(x) + ceilf(y) + truncf(x) + rintf(y);
  r += __saturatef(x) + (isnan(x) ? 1.0f : 0.0f) + (x > y) + __frcp_rn(y) - x;
  out[i] = r;
}
