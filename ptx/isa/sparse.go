package isa

import (
	"slices"
	"strings"
)

// Sparse products store half of A's elements. Each chunk of a row has 4 bits of metadata, which say
// which elements are stored. The selector operand says which lanes of each four hold the metadata.

// sparse returns both variants of mma.sp, and a sparse form for every dense wgmma.
func sparse() (forms []Form) {
	for _, v := range []struct {
		name, op string
		version  Version
	}{{"MmaSp", "mma.sp.sync.aligned", 71}, {"MmaSpOrdered", "mma.sp::ordered_metadata.sync.aligned", 85}} {
		add := func(name, shape, sums string, elems []string, registers, selectors int) {
			f := mmaForm(v.name+name, shape, sums, elems, registers, registers, SM80, v.version)
			f.Op, f.Args, f.Manual = v.op, append(f.Args, metadata(selectors)...), "mma.sp"
			if name == "FP8" { // sm_89 is enough, as for the dense mma of FP8
				f.Version, f.Arch = max(f.Version, 84), SM90
			}
			forms = append(forms, f)
		}
		add("F16", ".m16n8k32", ".f32", []string{".f16"}, 4, 2)
		add("F16K16", ".m16n8k16", ".f32", []string{".f16"}, 2, 4)
		add("F16Halves", ".m16n8k32", ".f16", []string{".f16"}, 4, 2)
		add("F16K16Halves", ".m16n8k16", ".f16", []string{".f16"}, 2, 4)
		add("BF16", ".m16n8k32", ".f32", []string{".bf16"}, 4, 2)
		add("BF16K16", ".m16n8k16", ".f32", []string{".bf16"}, 2, 4)
		add("TF32", ".m16n8k16", ".f32", []string{".tf32"}, 4, 2)
		add("TF32K8", ".m16n8k8", ".f32", []string{".tf32"}, 2, 4)
		add("FP8", ".m16n8k64", ".f32", []string{".e4m3", ".e5m2"}, 4, 1)
		add("Int8", ".m16n8k64", ".s32", []string{".s8", ".u8"}, 4, 1)
		add("Int8K32", ".m16n8k32", ".s32", []string{".s8", ".u8"}, 2, 2)
		add("Int4", ".m16n8k128", ".s32", []string{".s4", ".u4"}, 4, 1)
		add("Int4K64", ".m16n8k64", ".s32", []string{".s4", ".u4"}, 2, 2)
	}
	for _, families := range [][]Form{async, wgmmas} {
		for _, f := range families {
			if strings.HasPrefix(f.Op, "wgmma.mma_async.") {
				forms = append(forms, sparseWgmma(f))
			}
		}
	}
	return forms
}

// metadata returns the two operands that only sparse products have: the metadata, and a selector
// from 0 to selectors-1.
func metadata(selectors int) []Arg {
	return []Arg{register(in("metadata", B32)), {Name: "selector", Kind: Imm, Type: U32, Below: int64(selectors)}}
}

// sparseWgmma returns the sparse form of a dense wgmma. Its extent in k is twice as large.
func sparseWgmma(f Form) Form {
	const op = "wgmma.mma_async."
	f.Name, f.Op, f.Manual = strings.Replace(f.Name, "Wgmma", "WgmmaSp", 1), op+"sp."+strings.TrimPrefix(f.Op, op), "wgmma.mma_async.sp"
	f.Mods, f.Version = slices.Clone(f.Mods), max(f.Version, 82)
	shapes := slices.Clone(f.Mods[0].Alts)
	selectors := 1 // for 8-bit elements all four lanes hold metadata
	for i, s := range shapes {
		head, k, _ := strings.Cut(s, "k")
		twice := map[string]string{"8": "16", "16": "32", "32": "64"}[k]
		shapes[i] = head + "k" + twice
		if twice != "64" {
			selectors = 2
		}
	}
	f.Mods[0].Alts = shapes
	f.Args = slices.Concat(f.Args[:3], metadata(selectors), f.Args[3:])
	return f
}
