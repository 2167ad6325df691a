package weights

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"sonicmoe/internal/spec"
)

// fp4 has the values of the 16 numbers of four bits, E2M1.
var fp4 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// MXFP4 has a scale, a power of two, for each group of 32 numbers (OCP Microscaling
// Formats 1.0).
const (
	groupNumbers = 32
	groupBytes   = 16
	scaleBias    = 127
	scaleNaN     = 255
)

// readBlocks dequantises blocks [E, rows, groups, 16] with scales [E, rows, groups].
// The low half of a byte is the first number. bf16 holds every number exactly.
func (l *Layer) readBlocks(ctx context.Context, to []byte, t spec.Type, p part, all []part) error {
	at := slices.IndexFunc(all, func(q part) bool { return q.piece == scales })
	if at < 0 {
		return errors.New("has no scales")
	}
	s := l.shape(p.tensor)
	groups := s.Dims[2] / groupNumbers
	if s.Dims[2]%groupNumbers != 0 {
		return fmt.Errorf("has rows of %d numbers, must have a multiple of %d", s.Dims[2], groupNumbers)
	}
	dims := []int64{s.Dims[0], s.Dims[1], groups}
	packed, of, err := l.raw(ctx, p.name, append(slices.Clone(dims), groupBytes))
	if err != nil {
		return err
	}
	if of.DType != "U8" {
		return fmt.Errorf("is %s, must be U8, two numbers a byte", of.DType)
	}
	scale, of, err := l.raw(ctx, all[at].name, dims)
	if err == nil && of.DType != "U8" && of.DType != "F8_E8M0" {
		err = fmt.Errorf("is %s, must be U8 or F8_E8M0", of.DType)
	}
	if err != nil {
		return fmt.Errorf("its scales, tensor %q: %w", all[at].name, err)
	}
	return encode(to, t, dequantise(packed, scale))
}

// dequantise returns the numbers of groups.
func dequantise(packed, scale []byte) []float32 {
	out := make([]float32, 0, 2*len(packed))
	for i, e := range scale {
		factor := float32(math.Ldexp(1, int(e)-scaleBias))
		if e == scaleNaN {
			factor = float32(math.NaN())
		}
		for _, b := range packed[i*groupBytes:][:groupBytes] {
			out = append(out, fp4[b&15]*factor, fp4[b>>4]*factor)
		}
	}
	return out
}
