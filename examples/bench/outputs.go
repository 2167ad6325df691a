package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// output is a tensor, of the layer's type, that a pass writes.
type output struct {
	name string
	moe.Tensor
	// sample lists the rows to compare, or is nil for all rows. The gradients of expert weights
	// are sampled, because they are too large to be copied whole.
	sample []int64
}

// sampleRows is the number of rows of an expert weight's gradient to compare.
const sampleRows = 512

// sampledRows returns rows that are spread over the experts and over the rows of an expert.
func sampledRows(experts, rows int) []int64 {
	var list []int64
	for _, r := range trial.SampleRows(experts, rows, sampleRows) {
		list = append(list, int64(r.Expert)*int64(rows)+int64(r.Row))
	}
	return list
}

// width returns the number of elements of a row.
func (o output) width() int64 { return o.Shape.Dims[o.Shape.Rank-1] }

// poison overwrites the outputs with NaN.
func (u *subject) poison() error {
	for _, o := range u.outputs {
		if err := u.Stream().Fill32(o.Ptr, 0xffffffff, o.Shape.Bytes()/4); err != nil {
			return err
		}
	}
	return nil
}

// hash waits for the pass and returns a hash of the outputs' bits. A value that is not finite
// is an error; it may be poison that the pass did not overwrite.
func (u *subject) hash(ctx context.Context) (string, error) {
	if err := u.Stream().Synchronize(ctx); err != nil {
		return "", err
	}
	all := sha256.New()
	for _, o := range u.outputs {
		values, err := u.read(o)
		if err != nil {
			return "", err
		}
		exponent := map[moe.Type]uint16{moe.BF16: 0x7f80, moe.F16: 0x7c00}[o.Shape.Type]
		for i, v := range values {
			if v&exponent == exponent {
				row := int64(i) / o.width()
				if o.sample != nil {
					row = o.sample[row]
				}
				return "", fmt.Errorf("%s, row %d, column %d has the bits %#04x, must be a finite number", o.name, row, int64(i)%o.width(), v)
			}
		}
		all.Write(num.Bytes(values))
	}
	return hex.EncodeToString(all.Sum(nil)[:8]), nil
}

// read copies an output, or the sampled rows of it, to the host. The next call overwrites the
// result.
func (u *subject) read(o output) ([]uint16, error) {
	width, n := o.width(), o.Shape.Elements()
	if o.sample != nil {
		n = int64(len(o.sample)) * width
	}
	if int64(cap(u.host)) < n {
		u.host = make([]uint16, n)
	}
	values := u.host[:n]
	if o.sample == nil {
		return values, u.Stream().CopyToHost(num.Bytes(values), o.Ptr)
	}
	for i, row := range o.sample {
		to := values[int64(i)*width : int64(i+1)*width]
		if err := u.Stream().CopyToHost(num.Bytes(to), o.Ptr+driver.DevicePtr(2*row*width)); err != nil {
			return nil, err
		}
	}
	return values, nil
}
