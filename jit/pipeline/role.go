package pipeline

import "sonicmoe/ptx"

// WarpgroupThreads is the number of threads of a warpgroup.
const WarpgroupThreads = 128

// Role is a part that some warpgroups of a CTA play; or warps, where Run gets their number.
type Role struct {
	// Name is that of the labels of its part of the text: "load", "math".
	Name string
	// First is the first warpgroup, Count how many.
	First, Count int
	// Body is emitted once, for all warpgroups of the role.
	Body func()
}

// Run emits the roles one after another, each under a branch of its
// warpgroups.
//
// All threads keep the registers of the launch. setmaxnreg could move some from
// one role to another, but the driver's linker, which makes the machine code
// that can be kept, compiles as for linking with other code and ignores it: a
// kernel that counts on it then spills (the gradient of H took 0.62 ms
// instead of 0.44). Nor would fewer threads help: registers belong to the four
// parts of an SM, and with nine to twelve warps one of them has three.
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
