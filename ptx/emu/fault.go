package emu

import (
	"fmt"
)

// FaultKind is the kind of rule that a kernel has broken.
type FaultKind uint8

// The kinds of faults.
const (
	// Deadlock: no thread of a CTA or cluster can run, or the threads run without progress.
	Deadlock FaultKind = iota + 1
	// OutOfBounds: an access lies outside every allocation, outside the CTA's shared memory or
	// outside the parameters.
	OutOfBounds
	// Misaligned: an address lacks the alignment that its instruction needs.
	Misaligned
	// UninitializedRegister: a register is read before it was written.
	UninitializedRegister
	// UninitializedShared: shared memory is read before it was written.
	UninitializedShared
	// AccumulatorInFlight: an accumulator is touched, or a register of A is written, while a
	// wgmma may still use it.
	AccumulatorInFlight
	// MissingFence: a wgmma lacks the wgmma.fence that must order it after earlier accesses to its
	// registers.
	MissingFence
	// IllegalDescriptor: a matrix descriptor or tensor map is invalid.
	IllegalDescriptor
	// BarrierMisuse: a named barrier or mbarrier is used against its rules, for example by too many
	// arrivals.
	BarrierMisuse
	// DivergentAligned: only a part of a warp executes an instruction for whole warps, or the warps
	// of a warpgroup execute different ones.
	DivergentAligned
	// ProxyRace: no proxy fence lies between an ordinary store and an access of the same bytes
	// by the async proxy.
	ProxyRace
	// Race: at least one of two accesses to the same memory writes, and nothing orders them.
	Race
	// AsyncPending: a CTA ends while copies still use its shared memory.
	AsyncPending
	// IllegalInstruction: an instruction has operands that it does not accept.
	IllegalInstruction
	// Trap: the kernel executed trap.
	Trap
	// CTALifetime: nothing ensures that a CTA is running while another CTA accesses its shared
	// memory.
	CTALifetime
	// IdleLane: a shuffle reads a register of a lane that does not take part in it.
	IdleLane
	// NotFinite: an instruction turns finite numbers into a NaN or infinity, or loads a NaN.
	NotFinite
)

var faultNames = [...]string{
	Deadlock: "deadlock", OutOfBounds: "access out of bounds", Misaligned: "misaligned access",
	UninitializedRegister: "uninitialized register", UninitializedShared: "uninitialized shared memory",
	AccumulatorInFlight: "register in flight", MissingFence: "missing wgmma.fence",
	IllegalDescriptor: "illegal descriptor", BarrierMisuse: "barrier misuse",
	DivergentAligned: "divergent warp at an aligned instruction", ProxyRace: "missing proxy fence",
	Race: "race", AsyncPending: "unfinished copies at exit", IllegalInstruction: "illegal instruction", Trap: "trap",
	CTALifetime: "CTA lifetime", IdleLane: "shuffle from an idle lane", NotFinite: "not finite",
}

// String returns the kind in words.
func (k FaultKind) String() string {
	if int(k) < len(faultNames) && faultNames[k] != "" {
		return faultNames[k]
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// Severity is the weight of a finding.
type Severity uint8

// The severities.
const (
	// Error: the kernel gives wrong results on some chip or in some order, or may do so.
	Error Severity = iota
	// Strict: the kernel breaks a rule of the manual that only Launch.StrictProxy checks.
	Strict
	// Note: the kernel breaks a rule of the manual, but chips do not need it here.
	Note
)

// String returns the severity's name.
func (s Severity) String() string { return [...]string{"error", "strict", "note"}[s] }

// Fault describes a broken rule: which kernel broke it, where, and how.
type Fault struct {
	Kind     FaultKind
	Severity Severity
	Kernel   string
	// Line is the number of a line of the PTX text, starting at 1.
	Line int
	// Where is the position of Line in the source of the kernel, if it is known.
	Where string
	CTA   [3]int
	Warp  int
	Lanes uint32 // mask of the lanes that broke the rule
	// Text describes what was wrong and what would be right.
	Text string
}

// Error returns a text with the place, the kind and the description of the fault.
func (f *Fault) Error() string {
	where := ""
	if f.Where != "" {
		where = " (" + f.Where + ")"
	}
	lanes := ""
	if f.Lanes != 0 && f.Lanes != fullMask {
		lanes = ", " + laneList(f.Lanes)
	}
	severity := ""
	if f.Severity != Error {
		severity = " (" + f.Severity.String() + ")"
	}
	return fmt.Sprintf("kernel %s, PTX line %d%s, CTA (%d,%d,%d), warp %d%s: %v%s: %s",
		f.Kernel, f.Line, where, f.CTA[0], f.CTA[1], f.CTA[2], f.Warp, lanes, f.Kind, severity, f.Text)
}

// laneList returns "lane 3" or "lanes 0-7,12".
func laneList(mask uint32) string {
	var lanes []int
	for l := range lanesIn(mask) {
		lanes = append(lanes, l)
	}
	return plural("lane", lanes)
}
