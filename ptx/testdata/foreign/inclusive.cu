// A scan by shuffles whose predicate says where to add.
extern "C" __global__ void inclusive(int *out, const int *a, int n) {
  int i = threadIdx.x, x = i < n ? a[i] : 0;
  for (int d = 1; d < 32; d *= 2) {
    asm("{\n\t.reg .s32 r0;\n\t.reg .pred p;\n\tshfl.sync.up.b32 r0|p, %0, %1, 0, -1;\n\t@p add.s32 r0, r0, %2;\n\tmov.s32 %0, r0;\n\t}" : "+r"(x) : "r"(d), "r"(x));
  }
  out[i] = x;
}
