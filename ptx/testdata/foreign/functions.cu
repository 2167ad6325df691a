// Functions: called, called by address, of themselves, of the driver's.
#ifndef __CUDACC_RTC__
#include <cassert>
#include <cstdio>
#endif
struct S { int a, b; double c; };
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ S mk(int a, S s) { s.a += a; s.b -= a; s.c *= 2; return s; }
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n-1) + fib(n-2); }
typedef int (*op)(int,int);
__device__ __noinline__ int sub(int a, int b) { return a - b; }
__device__ op ops[2] = {add, sub};
struct B { __device__ virtual int f(int x) = 0; };
struct D1 : B { int k; __device__ D1(int k):k(k){} __device__ int f(int x) override { return x*k; } };
struct D2 : B { __device__ int f(int x) override { return x+7; } };
__device__ __noinline__ int sw(int x) {
  switch (x) {
  case 0: return 5;
  case 1: return x * 13;
  case 2: return __popc(x) + 2;
  case 3: return 9;
  case 4: return x * x * x;
  case 5: return -1;
  case 6: return 77;
  }
  return 0;
}
extern "C" __global__ void functions(int *out, const int *in, int n) {
  int i = blockIdx.x*blockDim.x+threadIdx.x;
  if (i >= n) return;
  int v = add(in[i], i);
  S s{v, i, 0.5*i};
  s = mk(i, s);
  v += s.a + s.b + (int)s.c;
  v += ops[i&1](v, 3);
  v += fib(i%6);
  B *b; D1 d1(i); D2 d2;
  if (in[i] & 1) b = &d1; else b = &d2;
  v += b->f(in[i]);
  v += sw(in[i]&7);
  assert(v != 123456789);
  if (v == 99999999) printf("%d %s\n", v, "x");
  out[i] = v;
}
