package weights

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/internal/spec"
)

// fp4 are the numbers of four bits, E2M1.
var fp4 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// A group of 32 numbers has 16 bytes and one scale, a power of two (OCP
// Microscaling Formats 1.0).
const (
	groupNumbers = 32
	groupBytes   = 16
	scaleBias    = 127
	noScale      = 255 // NaN
)

// readBlocks dequantises blocks [E, rows, groups, 16] with their scales [E, rows,
// groups]. A byte's low half comes first. Every number fits bf16 exactly.
func (l *Layer) readBlocks(to []byte, t spec.Type, p part, all []part) error {
	at := slices.IndexFunc(all, func(q part) bool { return q.piece == scales })
	if at < 0 {
		return errors.New("has no scales beside it")
	}
	s := l.shapes()[p.tensor]
	groups := s.Dims[2] / groupNumbers
	if s.Dims[2]%groupNumbers != 0 {
		return errors.New("has rows of other than groups of 32")
	}
	dims := []int64{s.Dims[0], s.Dims[1], groups}
	packed, of, err := l.raw(p.name, append(slices.Clone(dims), groupBytes))
	if err != nil {
		return err
	}
	if of.DType != safetensors.U8 {
		return fmt.Errorf("is %s, must be %s, two numbers a byte", of.DType, safetensors.U8)
	}
	scale, of, err := l.raw(all[at].name, dims)
	if err == nil && of.DType != safetensors.U8 && of.DType != safetensors.F8E8M0 {
		err = fmt.Errorf("is %s, must be %s or %s", of.DType, safetensors.U8, safetensors.F8E8M0)
	}
	if err != nil {
		return fmt.Errorf("its scales, tensor %q: %w", all[at].name, err)
	}
	return encode(to, t, dequantise(packed, scale))
}

func dequantise(packed, scale []byte) []float32 {
	out := make([]float32, 0, 2*len(packed))
	for i, e := range scale {
		factor := float32(math.Ldexp(1, int(e)-scaleBias))
		if e == noScale {
			factor = float32(math.NaN())
		}
		for _, b := range packed[i*groupBytes:][:groupBytes] {
			out = append(out, fp4[b&15]*factor, fp4[b>>4]*factor)
		}
	}
	return out
}
