package moe

import (
	"fmt"
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
)

// Tensor is a dense row-major tensor in device memory. The zero value means
// none.
type Tensor struct {
	Ptr   driver.DevicePtr
	Shape spec.Shape
}

// TensorID names a tensor of a pass; String returns the tensor's name. Ids of weights
// select fields of [Weights] and [WeightGradients].
type TensorID = spec.TensorID

// WeightIDs returns the ids of all weights, in the order of the fields of [Weights].
func WeightIDs() []TensorID { return slices.Clone(spec.Weights) }

// TensorAt describes a tensor of up to three dimensions at address p.
func TensorAt(p driver.DevicePtr, t Type, dims ...int) Tensor {
	s := spec.Shape{Type: t, Rank: len(dims)}
	for i, d := range dims {
		if i < len(s.Dims) {
			s.Dims[i] = int64(d)
		}
	}
	return Tensor{Ptr: p, Shape: s}
}

// IsZero reports whether the tensor is absent.
func (t Tensor) IsZero() bool { return t == Tensor{} }

// Buffer is plain device memory.
type Buffer struct {
	Ptr   driver.DevicePtr
	Bytes int64
}

// alignment is the alignment that TMA and 16-byte accesses need.
const alignment = 16

// addressEnd bounds the addresses of a device. The CUDA driver refuses tensor maps of tensors that
// end beyond it.
const addressEnd = 1 << 57

// These are texts of errors about an absent tensor, and about a weight or gradient
// that the layer does not have.
const (
	missing  = "missing"
	noWeight = "none: the layer has no such weight"
)

// span is a checked argument: its name, its address range, and whether the pass writes it.
type span struct {
	field   string
	from    driver.DevicePtr
	bytes   int64
	written bool
}

// argCheck collects the arguments of a call and keeps the first error. It
// lives in the Call, so checking allocates only for errors.
type argCheck struct {
	spans [64]span
	n     int
	err   error
}

func (c *argCheck) reset() { c.n, c.err = 0, nil }

func (c *argCheck) fail(field, got, want string) {
	if c.err == nil {
		c.err = &ArgError{Field: field, Got: got, Want: want}
	}
}

// tensor checks one argument against its required shape.
func (c *argCheck) tensor(field string, t Tensor, want spec.Shape, written bool) {
	switch {
	case c.err != nil:
	case t.IsZero():
		c.fail(field, missing, want.String())
	case t.Shape != want:
		c.fail(field, t.Shape.String(), want.String())
	default:
		c.add(field, t.Ptr, want.Bytes(), alignment, written)
	}
}

// weights checks weights, each against the shape that the layer's weight has.
func (c *argCheck) weights(ids []TensorID, w *Weights, want *spec.Shapes) {
	for _, id := range ids {
		c.weight(spec.Row(id).Name, w.Weight(id), want.Of(id))
	}
}

// routerWeights checks the router's weights. A backward pass reads only some of
// them.
func (c *argCheck) routerWeights(w *Weights, want *spec.Shapes, forward bool) {
	for _, id := range spec.RouterWeights {
		if r := spec.Row(id); forward || !r.ForwardOnly {
			c.weight(r.Name, w.Weight(id), want.Of(id))
		}
	}
}

// weight checks a weight that some layers do not have.
func (c *argCheck) weight(field string, got *Tensor, want spec.Shape) {
	switch {
	case !want.IsZero():
		c.tensor(field, *got, want, false)
	case !got.IsZero():
		c.fail(field, got.Shape.String(), noWeight)
	}
}

func (c *argCheck) add(field string, p driver.DevicePtr, bytes int64, align driver.DevicePtr, written bool) {
	switch {
	case c.err != nil || bytes == 0:
	case p == 0:
		c.fail(field+".Ptr", "0", fmt.Sprintf("the address of %d bytes", bytes))
	case p%align != 0:
		c.fail(field+".Ptr", fmt.Sprintf("%#x", uint64(p)), fmt.Sprintf("a multiple of %d", align))
	case p >= addressEnd || p+driver.DevicePtr(bytes) > addressEnd:
		c.fail(field+".Ptr", fmt.Sprintf("%#x", uint64(p)), fmt.Sprintf("the address of %d bytes below 2^57", bytes))
	default:
		c.spans[c.n] = span{field, p, bytes, written}
		c.n++
	}
}

// overlaps refuses written arguments that share bytes with another argument.
func (c *argCheck) overlaps() error {
	for i := 0; i < c.n && c.err == nil; i++ {
		for j := i + 1; j < c.n; j++ {
			a, b := &c.spans[i], &c.spans[j]
			if (a.written || b.written) && a.from < b.from+driver.DevicePtr(b.bytes) && b.from < a.from+driver.DevicePtr(a.bytes) {
				c.fail(b.field, fmt.Sprintf("%#x with %d bytes", uint64(b.from), b.bytes),
					fmt.Sprintf("apart from %s, which is %#x with %d bytes", a.field, uint64(a.from), a.bytes))
				break
			}
		}
	}
	return c.err
}
