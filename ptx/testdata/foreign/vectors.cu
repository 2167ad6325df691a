// Vectors of two and four, of every width.
extern "C" __global__ void vectors(uchar4 *o4, short2 *o2, longlong2 *ol, int2 *oi, const uchar4 *a4, const short4 *a2, const longlong2 *al, const int2 *ai) {
  int i = threadIdx.x;
  uchar4 c = a4[i];
  o4[i] = make_uchar4(c.w, c.z, c.y, c.x + 1);
  short4 s = a2[i];
  o2[i] = make_short2(s.x + s.w, s.y - s.z);
  longlong2 l = al[i];
  ol[i] = make_longlong2(l.y, l.x * 3);
  int2 v = ai[i];
  oi[i] = make_int2(v.y, v.x);
}
