// Loads and stores with their caches named.
extern "C" __global__ void cached(float *out, const float *__restrict__ a, const float4 *__restrict__ b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float r = __ldg(&a[i]) + __ldcs(&a[i]) + __ldcg(&a[i]) + __ldca(&a[i]) + __ldlu(&a[i]) + __ldcv(&a[i]);
  float4 v = __ldcs(&b[i]);
  __stcs(&out[i], r + v.x + v.w);
  __stcg(&out[n + i], v.y);
  __stwt(&out[2 * n + i], v.z);
  *(volatile float *)&out[3 * n + i] = r;
  out[4 * n + i] = *(volatile const float *)&a[i];
}
