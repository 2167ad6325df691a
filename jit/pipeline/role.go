package pipeline

import "sonicmoe/ptx"

// WarpgroupThreads is the number of threads of a warpgroup.
const WarpgroupThreads = 128

// Role is a part that some warpgroups of a CTA play.
type Role struct {
	// Name appears in errors only.
	Name string
	// First is the first warpgroup, Count how many.
	First, Count int
	// Registers is the register count of each thread (setmaxnreg); 0 leaves
	// the launch's.
	Registers int
	// Body is emitted once, for all warpgroups of the role.
	Body func()
}

// Run emits the roles one after another, each under a branch of its
// warpgroups. entryRegisters is what each thread has at the start.
func Run(k *ptx.Kernel, warpgroup ptx.U32, entryRegisters int, roles ...Role) {
	if len(roles) == 0 {
		return
	}
	r, rest := roles[0], roles[1:]
	body := func() {
		if r.Registers > 0 && r.Registers != entryRegisters {
			k.SetMaxNReg(r.Registers, r.Registers > entryRegisters)
		}
		r.Body()
	}
	if len(rest) == 0 {
		body()
		return
	}
	mine := warpgroup.Sub(ptx.Uint(r.First)).LtI(r.Count)
	k.IfElse(mine, body, func() { Run(k, warpgroup, entryRegisters, rest...) })
}
