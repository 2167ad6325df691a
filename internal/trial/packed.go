package trial

import (
	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// pack writes packed weights to the device, and sets Weights to the values of the packed
// weights. It does nothing for a layer of plain weights.
func (t *Trial) pack() error {
	c := t.Layer.Config()
	p := spec.PackingOf(c)
	if p == nil {
		return nil
	}
	c.Weights = ""
	s := c.Shapes(0)
	for _, of := range [][2]spec.TensorID{{spec.TensorW1, spec.TensorW1Scale}, {spec.TensorW3, spec.TensorW3Scale}, {spec.TensorW2, spec.TensorW2Scale}} {
		bits := t.Weights.Bits(of[0])
		if len(*bits) == 0 {
			continue
		}
		values := make([]float32, len(*bits))
		num.DecodeBF16(values, *bits)
		rows, columns := int(s.Of(of[0]).Dims[1]), int(s.Of(of[0]).Dims[2])
		codes, scales := packed.Pack(p, values, rows, columns)
		*bits = packed.Bits(p, codes, scales, rows, columns)
		if err := moe.Write(t.stream, *t.Args.Weight(of[0]), codes); err != nil {
			return err
		}
		if err := t.stream.CopyToDevice(t.Args.Weight(of[1]).Ptr, scales); err != nil {
			return err
		}
	}
	return nil
}
