package isa_test

import (
	"fmt"

	"sonicmoe/ptx/isa"
)

// Example prints how an instruction is written and what it needs.
func Example() {
	f := &isa.Table[isa.LdGlobal]
	var m isa.Mods
	m[f.ModIndex("vec")] = 2  // .v4
	m[f.ModIndex("type")] = 4 // .f32
	version, arch := f.Needs(m)
	fmt.Println(f.Op, f.Mod(m, "vec"), f.Mod(m, "type"))
	fmt.Println(f.ArgLen(m, 0), "values of", f.ArgType(m, 0))
	fmt.Println("from .version", version, ".target", arch)
	// Output:
	// ld.global .v4 .f32
	// 4 values of f32
	// from .version 7.0 .target sm_70
}
