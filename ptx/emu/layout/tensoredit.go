package layout

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// mapElements maps the numbers of .elemtype in tensormap.replace to element types. No instruction
// that is emulated uses maps of other types.
var mapElements = map[uint64]ElemType{0: ElemU8, 1: ElemU16, 2: ElemU32, 3: ElemS32, 6: ElemF16, 7: ElemF32, 10: ElemBF16}

// ReplaceField changes one field of an encoded map, as tensormap.replace does. It returns "", or
// why the field cannot have the value.
func ReplaceField(b []byte, field string, dimension int, value uint64) string {
	le := binary.LittleEndian
	switch isNew := strings.Trim(string(b), "\x00") == ""; {
	case isNew:
		copy(b, tensorMapMagic)
		b[tmRank] = 1
	case string(b[:len(tensorMapMagic)]) != tensorMapMagic:
		return "the 128 bytes are not a tensor map, want zeros or a map"
	}
	if dimension < 0 || dimension > 4 || field == "global_stride" && dimension > 3 {
		return "dimension is out of range, want 0 to 4, or 0 to 3 for a stride"
	}
	switch field {
	case "global_address":
		le.PutUint64(b[tmAddress:], value)
	case "rank":
		b[tmRank] = byte(min(value, 254) + 1)
	case "box_dim":
		le.PutUint16(b[tmBox+2*dimension:], uint16(min(value, 1<<16-1)))
	case "global_dim":
		le.PutUint32(b[tmDims+4*dimension:], uint32(value)-1)
	case "global_stride":
		le.PutUint64(b[tmStrides+8*dimension:], value)
	case "elemtype":
		b[tmElem] = byte(mapElements[value])
	case "swizzle_mode":
		b[tmSwizzle] = byte(min(value, 255))
	case "element_stride":
		if value != 1 {
			return "element strides other than 1 are not emulated"
		}
	default: // interleave_layout and fill_mode
		if value != 0 {
			return "a " + field + " other than 0 is not emulated"
		}
	}
	le.PutUint32(b[tmChecksum:], crc32.ChecksumIEEE(b[:tmChecksum]))
	return ""
}
