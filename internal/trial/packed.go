package trial

import (
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
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
