// Arithmetic of 8 and 16 bits.
extern "C" __global__ void bytes(unsigned char *out, const unsigned char *a, const signed char *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = (unsigned char)(a[i] * 3 + (b[i] >> 1));
}
extern "C" __global__ void shorts(short *out, const short *a, const unsigned short *b, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  short x = a[i];
  unsigned short y = b[i];
  short q = x / 7;
  unsigned short r = y % 11;
  short lo = x < (short)r ? x : (short)r;
  out[i] = (short)(q + lo - (x & y) + (x | 3) + (short)(x ^ y) + (short)(~x) + (x << 2) + (y >> 3) + (x >> 1));
}
