package num

import (
	"runtime"
	"sync"
	"unsafe"
)

// Number is the element type of a tensor. uint16 holds the bits of a bf16 or fp16 number.
type Number interface {
	uint8 | uint16 | int32 | uint32 | int64 | uint64 | float32 | float64
}

// Float lists the types from and to which slices of bf16 and fp16 are converted.
type Float interface{ float32 | float64 }

// encoding returns the function that converts slices of F to 16-bit numbers: of32 for float32,
// or of64 for each element of float64. Both round once.
func encoding[F Float](of32 func([]uint16, []float32), of64 func(float64) uint16) func([]uint16, []F) {
	return either[func([]uint16, []F)](of32, func(dst []uint16, src []float64) {
		for i, x := range src {
			dst[i] = of64(x)
		}
	})
}

// decoding returns the function that converts slices of 16-bit numbers to F.
func decoding[F Float](of32 func([]float32, []uint16), one func(uint16) float32) func([]F, []uint16) {
	return either[func([]F, []uint16)](of32, func(dst []float64, src []uint16) {
		for i, b := range src {
			dst[i] = float64(one(b))
		}
	})
}

// either returns the argument whose type is T.
func either[T any](a, b any) T {
	if t, ok := a.(T); ok {
		return t
	}
	return b.(T)
}

// Bytes views a slice of numbers as bytes and shares the slice's memory. The byte order is the
// machine's. On every supported machine the device has the same order.
func Bytes[E Number](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// serial is the largest length of a slice that one goroutine converts.
const serial = 1 << 16

// each converts src to dst, and splits long slices over several goroutines. convert gets slices
// of equal length.
func each[T, F any](dst []T, src []F, convert func([]T, []F)) {
	dst = dst[:len(src)] // panics before anything is written if dst is too short
	parts := min(runtime.GOMAXPROCS(0), (len(src)+serial-1)/serial)
	if parts <= 1 {
		convert(dst, src)
		return
	}
	var wg sync.WaitGroup
	for p := range parts {
		from, to := len(src)*p/parts, len(src)*(p+1)/parts
		wg.Go(func() { convert(dst[from:to], src[from:to]) })
	}
	wg.Wait()
}
