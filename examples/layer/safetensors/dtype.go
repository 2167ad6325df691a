package safetensors

// DType names a number format as the header does.
type DType string

// The formats that a MoE layer is made of. Others are known by name and size.
const (
	BF16 DType = "BF16"
	F16  DType = "F16"
	F32  DType = "F32"
	I32  DType = "I32"
	// MXFP4's numbers are bytes, and so are its scales, or exponents by name.
	U8     DType = "U8"
	F8E8M0 DType = "F8_E8M0"
)

// bits of one element, of every format known.
var bits = map[DType]int64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, F16: 16, BF16: 16,
	I32: 32, "U32": 32, F32: 32,
	"F64": 64, "I64": 64, "U64": 64, "C64": 64,
}

// Bits is the size of one element in bits, 0 for an unknown format.
func (d DType) Bits() int64 { return bits[d] }
