package spec

// Packing is a format of packed expert weights: a row of Packings. A packed matrix [out, in] is
// two row-major tensors: codes [out, in·CodeBits/8] u8, and scales [⌈out/Rows⌉, ⌈in/Columns⌉].
// Two codes of 4 bits share a byte, the first in the low half. A format may also have zero
// points, with the shape of the scales, and one global FP32 scale for each matrix. Package
// packed computes the numbers that codes stand for.
type Packing struct {
	// Name is the word of Config.Weights.
	Name string
	// Code is the number format of the codes, and Scale is the number format of the scales.
	Code  Code
	Scale Scale
	// Rows and Columns are the extents of the block of numbers that shares a scale. A block may
	// be cut off at the edge of the matrix. A block with Rows = 1, a group, is never cut off.
	Rows, Columns int
	// HasZeros reports whether each block has a zero point, a byte from 0 to 15, which is
	// subtracted from its codes.
	HasZeros bool
	// HasGlobal reports whether each matrix has a global scale, which multiplies its scales.
	HasGlobal bool
	// IsExact reports whether every finite product of code and scale below 2^127 is a bf16
	// number.
	IsExact bool
}

// Code is a number format of 4 or 8 bits.
type Code uint8

// These are the formats of codes.
const (
	// E2M1 has a sign, 2 exponent bits and 1 fraction bit: 0, 0.5, 1, 1.5, 2, 3, 4 and 6
	// (OCP Microscaling Formats 1.0, table 5).
	E2M1 Code = iota
	// E4M3 has a sign, 4 exponent bits with bias 7 and 3 fraction bits: up to 448, without
	// an infinity, with one NaN of each sign (OCP 8-bit Floating Point 1.0).
	E4M3
	// Int4 is 4 bits for an integer from -8 to 7: the bits as an unsigned number, minus 8.
	Int4
	// UInt4 is 4 bits for an integer from 0 to 15, from which a zero point is subtracted.
	UInt4
)

// Bits returns the number of bits of a code.
func (c Code) Bits() int {
	if c == E4M3 {
		return 8
	}
	return 4
}

// Scale is the number format of scales.
type Scale uint8

// These are the formats of scales.
const (
	// ScaleE8M0 is a byte u that means 2^(u-127). 255 is NaN (OCP Microscaling Formats 1.0).
	ScaleE8M0 Scale = iota
	// ScaleF32 is an FP32, ScaleBF16 a bf16, and ScaleF16 an IEEE half. ScaleE4M3 is a byte in
	// the format of the code E4M3.
	ScaleF32
	ScaleBF16
	ScaleF16
	ScaleE4M3
)

// Type returns the element type of a tensor of scales.
func (s Scale) Type() Type {
	return [...]Type{ScaleE8M0: U8, ScaleF32: F32, ScaleBF16: BF16, ScaleF16: F16, ScaleE4M3: U8}[s]
}

// wholeMatrix is an extent that is larger than any matrix, for one scale for each matrix.
const wholeMatrix = 4 * MaxWidth

// Packings is the table of packed formats. Shapes, checks, sizes, kernels and readers of files
// use it.
var Packings = []Packing{
	// OCP Microscaling Formats 1.0, as in gpt-oss. Tensors in files: gate_up_proj_blocks and
	// gate_up_proj_scales.
	{Name: "mxfp4", Code: E2M1, Scale: ScaleE8M0, Rows: 1, Columns: 32, IsExact: true},
	// DeepSeek-V3 (arXiv 2412.19437, section 3.3.2). Tensors in files: weight and
	// weight_scale_inv.
	{Name: "fp8", Code: E4M3, Scale: ScaleF32, Rows: 128, Columns: 128},
	// "fp8" with scales that are powers of two.
	{Name: "fp8-ue8m0", Code: E4M3, Scale: ScaleE8M0, Rows: 128, Columns: 128, IsExact: true},
	// Format pack-quantized of compressed-tensors, symmetric, as in Kimi-K2-Thinking. Tensors
	// in files: weight_packed, whose 32-bit words hold 8 codes, and weight_scale.
	// compressed-tensors rounds the dequantised product once, to bf16. The result here is the
	// same, because the FP32 product is exact. Only the number 0 with a negative scale differs: it
	// is -0 there and +0 here.
	{Name: "int4-g32", Code: Int4, Scale: ScaleBF16, Rows: 1, Columns: 32},
	{Name: "int4-g128", Code: Int4, Scale: ScaleBF16, Rows: 1, Columns: 128},
	// FP8 of the transformers library without weight_block_size: one scale for each expert's
	// matrix. Tensors in files: weight and weight_scale.
	{Name: "fp8-tensor", Code: E4M3, Scale: ScaleF32, Rows: wholeMatrix, Columns: wholeMatrix},
	// NVFP4 of ModelOpt (tensors weight, weight_scale and weight_scale_2) and of
	// compressed-tensors. ModelOpt's NVFP4QTensor.dequantize multiplies a scale with the
	// matrix' global scale in FP32, and then multiplies the code.
	{Name: "nvfp4", Code: E2M1, Scale: ScaleE4M3, Rows: 1, Columns: 16, HasGlobal: true},
	// Asymmetric 4-bit formats of compressed-tensors, of AWQ, and of GPTQ without act-order.
	// All of them compute (code - zero)·scale with one rounding, because the FP32 product is
	// exact.
	{Name: "uint4-g32", Code: UInt4, Scale: ScaleBF16, Rows: 1, Columns: 32, HasZeros: true},
	{Name: "uint4-g128", Code: UInt4, Scale: ScaleBF16, Rows: 1, Columns: 128, HasZeros: true},
	{Name: "uint4-g32-f16", Code: UInt4, Scale: ScaleF16, Rows: 1, Columns: 32, HasZeros: true},
	{Name: "uint4-g128-f16", Code: UInt4, Scale: ScaleF16, Rows: 1, Columns: 128, HasZeros: true},
}

// plainWeights is the word of Config.Weights for weights that are not packed.
const plainWeights = "plain"

// WeightFormats lists the words of Config.Weights in the order of their numbers in sonicmoe.h.
var WeightFormats = func() []string {
	words := []string{plainWeights}
	for _, p := range Packings {
		words = append(words, p.Name)
	}
	return words
}()

// PackingNamed returns the format named by a word of Config.Weights, or nil for plain weights.
func PackingNamed(word string) *Packing {
	for i := range Packings {
		if Packings[i].Name == word {
			return &Packings[i]
		}
	}
	return nil
}

// packing returns the format of the experts' weights, or nil for plain weights.
func (c *Config) packing() *Packing {
	if c.Weights == "" {
		return nil
	}
	return PackingNamed(c.Weights)
}

// PackingOf returns the format of the experts' weights, or nil for plain weights.
func PackingOf(c Config) *Packing { return c.packing() }

// IsPacked reports whether the experts' weights are packed.
func IsPacked(c Config) bool { return c.packing() != nil }

// IsPlain reports whether the experts' weights have the layer's Type.
func IsPlain(c Config) bool { return c.packing() == nil }

// LiesApart reports whether the format needs gate and up in two tensors (GateUp "apart"), because
// their scales must not depend on each other. The parameter rows is the number of rows of gate. Up
// has the same number.
func (p *Packing) LiesApart(rows int) bool { return p.HasGlobal || rows%p.Rows != 0 }

// CodeBytes returns the number of bytes of a row of codes with a number of columns.
func (p *Packing) CodeBytes(columns int64) int64 { return columns * int64(p.Code.Bits()) / 8 }

// Blocks returns the extents of the scales of a matrix: the number of blocks down and across.
func (p *Packing) Blocks(rows, columns int64) (down, across int64) {
	return (rows + int64(p.Rows) - 1) / int64(p.Rows), (columns + int64(p.Columns) - 1) / int64(p.Columns)
}

// BytesOfWeight returns the bytes of a weight, including its share of the block's scale and
// zero point. Every block counts as whole.
func (p *Packing) BytesOfWeight() float64 {
	block := float64(p.Scale.Type().Bytes())
	if p.HasZeros {
		block++
	}
	return float64(p.Code.Bits())/8 + block/(float64(p.Rows)*float64(p.Columns))
}

// PackedTensors holds the ids of the tensors of a packed matrix: its codes, their scales, zero
// points and global scales.
type PackedTensors struct{ Codes, Scales, Zeros, Global TensorID }

// All returns the four ids.
func (t PackedTensors) All() []TensorID { return []TensorID{t.Codes, t.Scales, t.Zeros, t.Global} }

// PackedMatrices holds the ids of W1, W3 and W2.
var PackedMatrices = []PackedTensors{
	{TensorW1, TensorW1Scale, TensorW1Zero, TensorW1Global},
	{TensorW3, TensorW3Scale, TensorW3Zero, TensorW3Global},
	{TensorW2, TensorW2Scale, TensorW2Zero, TensorW2Global},
}

// IsOnlyPacked reports whether the tensor exists only in layers with packed weights.
func (r *TensorRow) IsOnlyPacked() bool { return r.Needs&(HasScales|HasZeros|HasGlobal) != 0 }

// IsOfPacked reports whether the tensor is W1, W3 or W2, or one of their scales or zero points.
func (r *TensorRow) IsOfPacked() bool { return r.Type == OfCodes || r.IsOnlyPacked() }

// MatrixBytes returns the bytes of W1, W3 and W2. For packed weights this includes scales and
// zero points.
func MatrixBytes(c Config) (bytes int64) {
	s := c.Shapes(0)
	for _, id := range ExpertWeights {
		if Row(id).IsOfPacked() {
			bytes += s.Of(id).Bytes()
		}
	}
	return bytes
}

// bytesOfWeight returns the bytes of one weight of the experts.
func (c *Config) bytesOfWeight() float64 {
	if p := c.packing(); p != nil {
		return p.BytesOfWeight()
	}
	return float64(c.Type.Bytes())
}

// checkPacked checks the fields whose values are limited for packed weights.
func (c Config) checkPacked() *ArgError {
	p := c.packing()
	switch {
	case p == nil:
		return nil
	case c.Type != BF16 && p.Code != Int4 && p.Code != UInt4:
		return argErrorf("Config.Type", c.Type, "BF16 with Weights %s", p.Name)
	case c.InOut:
		return argErrorf("Config.InOut", true, "false with Weights %s: packed matrices are [out, in]", p.Name)
	case p.Rows == 1 && c.Hidden%p.Columns != 0:
		return argErrorf("Config.Hidden", c.Hidden, "a multiple of %d with Weights %s: a group does not cross the edge of a matrix", p.Columns, p.Name)
	case p.Rows == 1 && c.Intermediate%p.Columns != 0:
		return argErrorf("Config.Intermediate", c.Intermediate, "a multiple of %d with Weights %s: a group does not cross the edge of a matrix", p.Columns, p.Name)
	}
	return nil
}
