package main

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/moe"
)

// errBits is the error of a rank whose results do not have the bits of the results on one
// device.
var errBits = errors.New("the results have other bits than one device's")

// chunk is the number of bytes that are compared at a time.
const chunk = 64 << 20

// sameBytes reports whether two tensors of a device have the same bytes.
func sameBytes(s driver.Stream, a, b moe.Tensor) (bool, error) {
	total := a.Shape.Bytes()
	for at := int64(0); at < total; at += chunk {
		n := min(chunk, total-at)
		x, y := make([]byte, n), make([]byte, n)
		if err := errors.Join(s.CopyToHost(x, a.Ptr+driver.DevicePtr(at)), s.CopyToHost(y, b.Ptr+driver.DevicePtr(at))); err != nil {
			return false, err
		}
		if !bytes.Equal(x, y) {
			return false, nil
		}
	}
	return a.Shape == b.Shape, nil
}

// near reports whether two bf16 tensors of a device differ by at most nearness of their norm, as they do if
// a few partial sums of a row are rounded.
func near(s driver.Stream, a, b moe.Tensor) (bool, error) {
	n := a.Shape.Elements()
	x, y := make([]uint16, n), make([]uint16, n)
	if err := errors.Join(moe.Read(s, a, x), moe.Read(s, b, y)); err != nil {
		return false, err
	}
	difference, norm := 0.0, 0.0
	for i := range x {
		v, w := num.BF16ToFloat64(x[i]), num.BF16ToFloat64(y[i])
		difference, norm = difference+(v-w)*(v-w), norm+w*w
	}
	return difference <= nearness*nearness*norm, nil // false if a value is NaN
}

// nearness is the largest distance of two tensors of near, in terms of their norm.
const nearness = 1.0 / 128

// median returns the median time of a number of runs, after one run to warm up.
func median(runs int, run func() error) (time.Duration, error) {
	times := make([]time.Duration, 0, runs)
	for i := range runs + 1 {
		began := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		if i > 0 {
			times = append(times, time.Since(began))
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
