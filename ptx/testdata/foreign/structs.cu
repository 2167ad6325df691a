// Parameters by value.
struct Shape {
  int rows, cols;
  float scale;
  short bias[3];
  float *out;
};
extern "C" __global__ void structs(const Shape s, const float *a, char flag, unsigned short k, double d) {
  int i = threadIdx.x;
  if (i < s.rows * s.cols) s.out[i] = a[i] * s.scale + s.bias[i % 3] + flag + k + (float)d;
}
