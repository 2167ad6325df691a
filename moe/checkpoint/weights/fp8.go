package weights

import (
	"context"
	"fmt"
	"math"
	"slices"

	"sonicmoe/internal/num"
	"sonicmoe/moe/checkpoint/safetensors"
)

// The FP8 files of DeepSeek-V3 and its descendants have a scale for each block of
// fp8Block by fp8Block numbers. The scales are a tensor with the numbers' name and the
// suffix blockScales.
const (
	fp8Block    = 128
	blockScales = "_scale_inv"
)

// plain dequantises FP8 numbers to F32. It returns the numbers of other tensors as they are.
func (l *Layer) plain(ctx context.Context, raw []byte, t safetensors.Tensor) ([]byte, safetensors.Tensor, error) {
	name := t.Name + blockScales
	_, scaled := l.where[name]
	switch fp8 := t.DType == "F8_E4M3"; {
	case !fp8 && !scaled:
		return raw, t, nil
	case !fp8:
		return nil, t, fmt.Errorf("is %s and has scales, tensor %q: must be F8_E4M3", t.DType, name)
	case len(t.Shape) < 2:
		return nil, t, fmt.Errorf("is FP8 (F8_E4M3) of extents %v, must be matrices", t.Shape)
	case !scaled:
		return nil, t, fmt.Errorf("is FP8 (F8_E4M3) without tensor %q, the scales of its blocks of %d x %d: no other FP8 is read", name, fp8Block, fp8Block)
	}
	dims := slices.Clone(t.Shape)
	for i := max(len(dims)-2, 0); i < len(dims); i++ {
		dims[i] = (dims[i] + fp8Block - 1) / fp8Block
	}
	scales, of, err := l.raw(ctx, name, dims)
	if err != nil {
		return nil, t, fmt.Errorf("its scales, tensor %q, one for each block of %d x %d: %w", name, fp8Block, fp8Block, err)
	}
	from, ok := types[of.DType]
	if !ok {
		return nil, t, fmt.Errorf("its scales, tensor %q: is %s, must be BF16, F16 or F32", name, of.DType)
	}
	factors := decode(scales, from)
	out := make([]float32, len(raw))
	columns := t.Shape[len(t.Shape)-1]
	rows, perRow := t.Shape[len(t.Shape)-2], dims[len(dims)-1]
	for i, b := range raw {
		row, column := int64(i)/columns, int64(i)%columns
		block := row/rows*dims[len(dims)-2] + row%rows/fp8Block
		out[i] = fp8[b] * factors[block*perRow+column/fp8Block]
	}
	t.DType = "F32"
	return num.Bytes(out), t, nil
}

// fp8 has the values of the 256 numbers of eight bits, E4M3: no infinity, one NaN a sign.
var fp8 = func() (values [256]float32) {
	for b := range 128 {
		exponent, fraction := b>>3, float64(b&7)/8
		v := math.Ldexp(1+fraction, exponent-7)
		if exponent == 0 {
			v = math.Ldexp(fraction, -6)
		}
		if b == 127 {
			v = math.NaN()
		}
		values[b], values[b+128] = float32(v), float32(-v)
	}
	return values
}()
