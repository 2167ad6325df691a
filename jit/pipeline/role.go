package pipeline

import "sonicmoe/ptx"

// WarpgroupThreads is the number of threads of a warpgroup.
const WarpgroupThreads = 128

// Role is what some warpgroups of a CTA do. If [Run] gets warp numbers instead of warpgroup
// numbers, First and Count count warps.
type Role struct {
	// Name is the prefix of the labels in the role's part of the text, such as "load" or "math".
	Name string
	// First is the number of the role's first warpgroup, Count the number of its warpgroups.
	First, Count int
	// Body is emitted once, for all warpgroups of the role.
	Body func()
}

// Run emits the roles one after another, each under a branch for its warpgroups.
//
// All threads keep the number of registers with which the kernel starts. setmaxnreg could move
// registers between roles. But the driver's linker compiles the kernel as code to be linked with
// other code, and then ignores setmaxnreg, so such a kernel spills registers (see
// examples/bench/h200/experiments.md). Fewer threads would not leave more registers for each thread
// either. An SM has four parts with registers of their own, and with nine to twelve warps one part
// has three warps.
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
