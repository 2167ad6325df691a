// Constant memory with initial values, and one that a kernel chooses from.
__constant__ float weights[8] = {0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4};
__constant__ int order[8] = {7, 3, 1, 0, 2, 6, 5, 4};
__constant__ char letters[12] = "hello world";
extern "C" __global__ void constant(float *out, const float *a, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float r = 0;
  for (int k = 0; k < 8; k++) r += weights[k] * a[(i + order[k]) % n];
  out[i] = r + letters[i % 11];
}
