package pipeline

import "sonicmoe/ptx"

// WarpgroupThreads is the number of threads of a warpgroup.
const WarpgroupThreads = 128

// Role is a part that some warpgroups of a CTA run. If Run gets warp numbers, it
// counts warps in place of warpgroups.
type Role struct {
	// Name is the prefix of the labels in the role's part of the text: "load", "math".
	Name string
	// First is the first warpgroup, Count the number of warpgroups.
	First, Count int
	// Body is emitted once, for all warpgroups of the role.
	Body func()
}

// Run emits the roles one after another, each under a branch for its warpgroups.
//
// All threads keep the registers of the launch. setmaxnreg could move registers
// between roles, but the driver's linker compiles as for linking with other code
// and ignores it, so such a kernel spills (see
// examples/bench/h200/experiments.md). Fewer threads would not help either:
// registers belong to the four parts of an SM, and with nine to twelve warps one
// part has three.
func Run(k *ptx.Kernel, warpgroup ptx.U32, roles ...Role) {
	if len(roles) == 0 {
		return
	}
	r, rest := roles[0], roles[1:]
	body := func() { k.Scope(r.Name, r.Body) }
	if len(rest) == 0 {
		body()
		return
	}
	mine := warpgroup.Sub(ptx.Uint(r.First)).LtI(r.Count)
	k.IfElse(mine, body, func() { Run(k, warpgroup, rest...) })
}
