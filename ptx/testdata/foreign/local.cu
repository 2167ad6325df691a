// Arrays of a thread, indexed at run time.
extern "C" __global__ void local_sort(int *out, const int *a, int n) {
  int v[16], t = threadIdx.x;
  for (int i = 0; i < 16; i++) v[i] = a[16 * t + i];
  for (int i = 1; i < 16; i++) {
    int x = v[i], j = i;
    for (; j > 0 && v[j - 1] > x; j--) v[j] = v[j - 1];
    v[j] = x;
  }
  for (int i = 0; i < 16; i++) out[16 * t + i] = v[i];
}
