package trial

import (
	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// pack writes packed weights to the device, and sets Weights to the numbers that they stand
// for. It does nothing for a layer with plain weights.
func (t *Trial) pack() error {
	c := t.Layer.Config()
	p := spec.PackingOf(c)
	if p == nil {
		return nil
	}
	c.Weights = ""
	s := c.Shapes(0)
	for _, of := range spec.PackedMatrices {
		bits := t.Weights.Bits(of.Codes)
		if len(*bits) == 0 {
			continue
		}
		values := make([]float32, len(*bits))
		if c.Type == spec.F16 {
			num.DecodeF16(values, *bits)
		} else {
			num.DecodeBF16(values, *bits)
		}
		rows, columns := int(s.Of(of.Codes).Dims[1]), int(s.Of(of.Codes).Dims[2])
		m := packed.Pack(p, values, rows, columns)
		*bits = packed.Bits(p, m, c.Type, rows, columns)
		for _, id := range of.All() {
			if to := *t.Args.Weight(id); !to.IsZero() {
				if err := t.stream.CopyToDevice(to.Ptr, *m.Of(of, id)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// FillExperts fills W1, W3 and W2 with copies of the same random weights, in the format of the layer's
// weights.
func FillExperts(s driver.Stream, c moe.Config, w *moe.Weights) error {
	const rows, columns = 1024, 1024
	bits := reference.NewNormalOf(c.Normal().Type, 3, reference.ScaleWeight).Values(rows * columns)
	m := packed.Matrices{Codes: num.Bytes(bits)}
	if p := spec.PackingOf(c); p != nil {
		values := make([]float32, len(bits))
		if c.Type == spec.F16 {
			num.DecodeF16(values, bits)
		} else {
			num.DecodeBF16(values, bits)
		}
		m = packed.Pack(p, values, rows, columns)
	}
	for _, t := range []struct {
		from []byte
		to   []moe.Tensor
	}{
		{m.Codes, []moe.Tensor{w.W1, w.W3, w.W2}}, {m.Scales, []moe.Tensor{w.W1Scale, w.W3Scale, w.W2Scale}},
		{m.Zeros, []moe.Tensor{w.W1Zero, w.W3Zero, w.W2Zero}}, {m.Global, []moe.Tensor{w.W1Global, w.W3Global, w.W2Global}},
	} {
		for _, to := range t.to {
			for at := int64(0); at < to.Shape.Bytes(); at += int64(len(t.from)) {
				part := t.from[:min(int64(len(t.from)), to.Shape.Bytes()-at)]
				if err := s.CopyToDevice(to.Ptr+driver.DevicePtr(at), part); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ArrangeUnits returns a buffer with the units of packed weights, or no buffer for plain weights.
func ArrangeUnits(s driver.Stream, l *moe.Layer, memory *moe.Arena, w moe.Weights) (moe.Buffer, error) {
	sizes, err := l.Sizes(1)
	if err != nil || sizes.Units == 0 {
		return moe.Buffer{}, err
	}
	units := memory.Buffer(sizes.Units)
	if err := memory.Err(); err != nil {
		return moe.Buffer{}, err
	}
	return units, l.NewCall().Arrange(s, w, units)
}
