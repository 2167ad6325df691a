// Dynamic shared memory, vectors of four.
extern __shared__ float4 dynamic_tile[];
extern "C" __global__ void __launch_bounds__(64) reverse(float4 *out, const float4 *a, int n) {
  int t = threadIdx.x;
  dynamic_tile[t] = a[blockIdx.x * 64 + t];
  __syncthreads();
  float4 v = dynamic_tile[63 - t];
  out[blockIdx.x * 64 + t] = make_float4(v.w, v.z, v.y, v.x);
}
