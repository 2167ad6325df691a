// Command gen writes zlanes.go of package emu. That file has a function for each simple
// instruction. Each function loops over the lanes of a warp. Run it with "go generate ./ptx/emu".
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"regexp"
	"strings"
)

// row is an instruction form of ptx/isa, with the types that share one function.
type row struct {
	form  string
	types string // isa.Type names; modifiers for a form without a type
	banks string // widths of the operands d, a, b and c: 32 or 64 bits, or p for a predicate
	expr  string // Go expression in A, B and C; it is a condition if the result is a predicate
}

var rows = []row{
	{"Add", "U32 S32", "32 32 32", "A + B"},
	{"Add", "U64 S64", "64 64 64", "A + B"},
	{"Sub", "U32 S32", "32 32 32", "A - B"},
	{"Sub", "U64 S64", "64 64 64", "A - B"},
	{"MulLo", "U32 S32", "32 32 32", "A * B"},
	{"MulLo", "U64 S64", "64 64 64", "A * B"},
	{"MulHi", "U32", "32 32 32", "uint32(uint64(A) * uint64(B) >> 32)"},
	{"MulHi", "S32", "32 32 32", "uint32(uint64(int64(int32(A))*int64(int32(B))) >> 32)"},
	{"MulWide", "U32", "64 32 32", "uint64(A) * uint64(B)"},
	{"MulWide", "S32", "64 32 32", "uint64(int64(int32(A)) * int64(int32(B)))"},
	{"MadLo", "U32 S32", "32 32 32 32", "A*B + C"},
	{"MadLo", "U64", "64 64 64 64", "A*B + C"},
	{"MadWide", "U32", "64 32 32 64", "uint64(A)*uint64(B) + C"},
	{"MadWide", "S32", "64 32 32 64", "uint64(int64(int32(A))*int64(int32(B))) + C"},
	{"Div", "U32", "32 32 32", "arith.Divide(A, B)"},
	{"Div", "S32", "32 32 32", "uint32(arith.Divide(int32(A), int32(B)))"},
	{"Div", "U64", "64 64 64", "arith.Divide(A, B)"},
	{"Rem", "U32", "32 32 32", "arith.Remainder(A, B)"},
	{"Rem", "S32", "32 32 32", "uint32(arith.Remainder(int32(A), int32(B)))"},
	{"Rem", "U64", "64 64 64", "arith.Remainder(A, B)"},
	{"Min", "U32", "32 32 32", "min(A, B)"},
	{"Min", "S32", "32 32 32", "uint32(min(int32(A), int32(B)))"},
	{"Min", "U64", "64 64 64", "min(A, B)"},
	{"Min", "S64", "64 64 64", "uint64(min(int64(A), int64(B)))"},
	{"Max", "U32", "32 32 32", "max(A, B)"},
	{"Max", "S32", "32 32 32", "uint32(max(int32(A), int32(B)))"},
	{"Max", "U64", "64 64 64", "max(A, B)"},
	{"Max", "S64", "64 64 64", "uint64(max(int64(A), int64(B)))"},
	{"And", "B32", "32 32 32", "A & B"},
	{"And", "B64", "64 64 64", "A & B"},
	{"Or", "B32", "32 32 32", "A | B"},
	{"Or", "B64", "64 64 64", "A | B"},
	{"Xor", "B32", "32 32 32", "A ^ B"},
	{"Xor", "B64", "64 64 64", "A ^ B"},
	{"Not", "B32", "32 32", "^A"},
	{"Not", "B64", "64 64", "^A"},
	// A shift by the width or more gives zeros, or copies of the sign bit.
	{"Shl", "B32", "32 32 32", "A << B"},
	{"Shl", "B64", "64 64 32", "A << B"},
	{"Shr", "U32", "32 32 32", "A >> B"},
	{"Shr", "S32", "32 32 32", "uint32(int32(A) >> B)"},
	{"Shr", "U64", "64 64 32", "A >> B"},
	{"Shr", "S64", "64 64 32", "uint64(int64(A) >> B)"},
	{"Popc", "B32", "32 32", "uint32(bits.OnesCount32(A))"},
	{"Popc", "B64", "32 64", "uint32(bits.OnesCount64(A))"},
	{"Clz", "B32", "32 32", "uint32(bits.LeadingZeros32(A))"},
	{"Clz", "B64", "32 64", "uint32(bits.LeadingZeros64(A))"},
	{"Prmt", "", "32 32 32 32", "arith.Permute(A, B, C)"},

	{"Mov", "B32 U32 F32 B16 S32 U16 S16", "32 32", "A"},
	{"Mov", "B64 U64 S64 F64", "64 64", "A"},
	{"CvtaToGlobal", "", "64 64", "A"},
	{"CvtaParam", "", "64 64", "A + paramWindow"},
	{"CvtIntToF32", "U32", "32 32", "math.Float32bits(float32(A))"},
	{"CvtIntToF32", "S32", "32 32", "math.Float32bits(float32(int32(A)))"},
	{"CvtF32ToBF16", "", "32 32", "arith.BF16Nearest(A)"},
	{"CvtF32ToBF16x2", "", "32 32 32", "arith.BF16Nearest(A)<<16 | arith.BF16Nearest(B)"},
	{"CvtBF16ToF32", "", "32 32", "A << 16"},
	{"CvtF32ToF16", "", "32 32", "arith.F16Nearest(A)"},
	{"CvtF32ToF16x2", "", "32 32 32", "arith.F16Nearest(A)<<16 | arith.F16Nearest(B)"},
	{"CvtF16ToF32", "", "32 32", "arith.F32FromF16(uint16(A))"},
	{"NegF32", "", "32 32", "A ^ arith.F32Sign"},
}

// compares returns the rows of setp. conversions returns the rows of cvt between integers.
func compares() (out []row) {
	for _, c := range [][2]string{{".eq", "=="}, {".ne", "!="}, {".lt", "<"}, {".le", "<="}, {".gt", ">"}, {".ge", ">="}} {
		for _, t := range [][3]string{{"U32", "32", "uint32"}, {"S32", "32", "int32"}, {"U64", "64", "uint64"}, {"S64", "64", "int64"}} {
			out = append(out, row{"Setp", t[0] + c[0], "p " + t[1] + " " + t[1], fmt.Sprintf("%s(A) %s %[1]s(B)", t[2], c[1])})
		}
	}
	return out
}

func conversions() (out []row) {
	type integer struct{ mod, bank, from, to string }
	for _, d := range []integer{
		{".u16", "32", "", "uint32(%s) & 0xffff"}, {".u32", "32", "", "uint32(%s)"}, {".s32", "32", "", "uint32(%s)"},
		{".u64", "64", "", "uint64(%s)"}, {".s64", "64", "", "uint64(%s)"},
	} {
		for _, a := range []integer{
			{".u16", "32", "A & 0xffff", ""}, {".u32", "32", "A", ""}, {".s32", "32", "int32(A)", ""},
			{".u64", "64", "A", ""}, {".s64", "64", "A", ""},
		} {
			out = append(out, row{"CvtInt", d.mod + a.mod, d.bank + " " + a.bank, fmt.Sprintf(d.to, a.from)})
		}
	}
	return out
}

var operands = regexp.MustCompile(`\b[ABC]\b`)

// function writes the function of a row and returns its name. first is the row's first type or
// modifier.
func function(b *bytes.Buffer, r row, first string) string {
	name := "lanes" + r.form + strings.NewReplacer(".", "_").Replace(first)
	fmt.Fprintf(b, "func %s(w *warp, _ *frag, in *inst, mask uint32) outcome {\n", name)
	banks := strings.Fields(r.banks)
	for i, bank := range banks {
		if bank != "p" {
			fmt.Fprintf(b, "%s := &w.r%s[in.slot[%d]]\n", "dabc"[i:i+1], bank, i)
		}
	}
	expr := operands.ReplaceAllStringFunc(r.expr, func(s string) string { return strings.ToLower(s) + "[l]" })
	if banks[0] == "p" {
		fmt.Fprintf(b, "p := uint32(0)\nfor l := range a {\nif %s {\np |= 1 << l\n}\n}\nw.setPred(in.slot[0], p, mask)\nreturn next\n}\n\n", expr)
		return name
	}
	fmt.Fprintf(b, "if mask != fullMask {\nfor m := mask; m != 0; m &= m - 1 {\nl := first(m)\nd[l] = %s\n}\nreturn next\n}\n", expr)
	fmt.Fprintf(b, "for l := range d {\nd[l] = %s\n}\nreturn next\n}\n\n", expr)
	return name
}

func source() []byte {
	var functions, table bytes.Buffer
	for _, r := range append(append(rows, compares()...), conversions()...) {
		types := strings.Fields(r.types)
		if len(types) == 0 {
			types = []string{""}
		}
		name := function(&functions, r, types[0])
		for _, t := range types {
			typ, mod, _ := strings.Cut(t, ".")
			key := "form: isa." + r.form
			if typ != "" {
				key += ", typ: isa." + typ
			}
			if mod != "" {
				key += fmt.Sprintf(", mod: %q", "."+mod)
			}
			fmt.Fprintf(&table, "{%s}: %s,\n", key, name)
		}
	}
	src := "// Code generated by ptx/emu/internal/gen. DO NOT EDIT.\n\npackage emu\n\n" +
		"import (\n\"math\"\n\"math/bits\"\n\n\"sonicmoe/ptx/emu/internal/arith\"\n\"sonicmoe/ptx/isa\"\n)\n\n" +
		"var laneForms = map[laneKey]execFunc{\n" + table.String() + "}\n\n" + functions.String()
	out, err := format.Source([]byte(src))
	if err != nil {
		log.Fatalf("%v\n%s", err, src)
	}
	return out
}

func main() {
	// go generate runs in the folder of package emu.
	if err := os.WriteFile("zlanes.go", source(), 0o644); err != nil {
		log.Fatal(err)
	}
}
