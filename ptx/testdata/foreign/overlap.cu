// Programmatic dependents and a grid that waits for nobody.
extern "C" __global__ void overlap(int *out, const int *a, int n) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + 1;
  asm volatile("griddepcontrol.launch_dependents;");
}
