package emu

import (
	"encoding/binary"
	"fmt"

	"sonicmoe/ptx/emu/layout"
)

// This file writes the text of race findings: which two accesses race, and what would order them.

// both describes the earlier access old and the later access a.
func (r *races) both(old, a *access, at spot) string {
	does, did := "reads", "read"
	if a.writes {
		does = "writes"
	}
	if old.writes {
		did = "wrote"
	}
	return fmt.Sprintf("%s %s, which %s %s with %s (%s)", does, r.place(at), r.actor(old, a), did, old.in.form.Op, r.gridOf(old).place(old.in))
}

// gridOf returns the launch to which an access belongs.
func (r *races) gridOf(a *access) *grid {
	for _, g := range r.cl.grid.before {
		if n := a.site.cluster - g.base; n >= 0 && n < g.clusters {
			return g
		}
	}
	return r.cl.grid
}

// place describes the address of a spot.
func (r *races) place(at spot) string {
	switch {
	case at.c == nil:
		return r.cl.grid.globalName(at.at)
	case len(r.cl.ctas) > 1:
		return fmt.Sprintf("shared memory %s of CTA %d", at.c.symbolic(uint32(at.at)), at.c.rank)
	}
	return "shared memory " + at.c.symbolic(uint32(at.at))
}

// globalName returns the text of a global address. If a kernel parameter points into the same
// allocation, the text has the distance from it.
func (g *grid) globalName(at uint64) string {
	text := fmt.Sprintf("global memory %#x", at)
	a := g.mem.find(at)
	if a == nil {
		return text
	}
	if from := g.parameter(a.base, at); from != "" {
		text += " (" + from + ")"
	}
	return text
}

// explain says why an address range is not allocated. If the memory was freed, it names the kernel
// parameter that points to it.
func (g *grid) explain(at, n uint64) string {
	text := g.mem.explain(at, n)
	if f := g.mem.freedAt(at); f.bytes > 0 {
		if from := g.parameter(f.base, at); from != "" {
			text += ": " + from
		}
	}
	return text
}

// parameter names the kernel parameter whose value, or whose tensor map's address, is closest below
// address at, but not below base. It also gives the distance of at from this value. It returns "" if
// there is none.
func (g *grid) parameter(base, at uint64) string {
	best, name := uint64(0), ""
	for _, p := range g.kernel.entry.Params {
		var v uint64
		switch {
		case p.Offset+p.Bytes > len(g.params):
			continue
		case p.Bytes == 8:
			v = binary.LittleEndian.Uint64(g.params[p.Offset:])
		case p.Bytes == layout.TensorMapBytes:
			if m, err := layout.DecodeTensorMap(g.params[p.Offset : p.Offset+p.Bytes]); err == nil {
				v = m.Address
			}
		}
		if v != 0 && v >= base && v <= at && v >= best {
			best, name = v, p.Name
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s + %d", name, at-best)
}

// actor names the warp of the earlier access old. If the warp is in another cluster than a, the
// name includes the CTA.
func (r *races) actor(old, a *access) string {
	if old.site.cluster == a.site.cluster {
		return r.cl.actor(old.warp, old.in)
	}
	text := fmt.Sprintf("warp %d", old.id)
	if old.in.role != "" {
		text = old.in.role + " " + text
	}
	g := r.gridOf(old)
	index, _ := g.clusterIndex(old.site.cluster - g.base)
	inside := unravel(old.site.rank, g.cluster)
	for d := range index {
		index[d] = index[d]*g.cluster[d] + inside[d]
	}
	return fmt.Sprintf("%s of CTA (%d,%d,%d)", text, index[0], index[1], index[2])
}

// remedy says what would order access a after access old.
func (r *races) remedy(old, a *access, at spot) string {
	if u := r.cl.unwritten; u != nil && u.Line == old.in.line {
		old, a = a, old // the read came first in this run; the kernel needs the write before the read
	}
	same := old.site == a.site && old.id == a.id
	then := func(wait string) string {
		if same {
			return wait + " before this access"
		}
		return wait + ", then " + r.meeting(old, a)
	}
	switch {
	case old.bar != 0:
		return then(fmt.Sprintf("wait for mbarrier %s, which the copy completes", r.cl.ctas[old.bar>>sharedRankBit].symbolic(old.bar)))
	case old.copy:
		return then("cp.async.wait_group by the warp that copied")
	case old.in.product != nil:
		return then("wgmma.wait_group by the warps that multiply")
	case old.async && old.writes:
		return then("cp.async.bulk.wait_group without .read by the thread that stored")
	case old.async:
		return then("cp.async.bulk.wait_group by the thread that stored")
	case old.strong && a.strong:
		return fmt.Sprintf("scopes that include both warps; the accesses have %v and %v", old.scope, a.scope)
	case at.c == nil:
		return r.meeting(old, a) + r.orStrong(old, a)
	}
	return r.meeting(old, a)
}

// orStrong returns another remedy, which applies if one of the accesses is strong: make both
// strong.
func (r *races) orStrong(old, a *access) string {
	if old.strong || a.strong {
		return "; or make both accesses atomic, relaxed or volatile"
	}
	return ""
}

// meeting says how the warp of access a can learn what the warp of access old did.
func (r *races) meeting(old, a *access) string {
	switch old.site.apart(a.site) {
	case ctaScope:
		return "a barrier that both warps reach, or an mbarrier at which one warp arrives and the other waits"
	case clusterScope:
		return "a cluster barrier that both warps reach, or an mbarrier at which one warp arrives and the other waits"
	}
	return "a word that the earlier warp writes after its access with release (or relaxed after fence.acq_rel.gpu) and the later warp reads before its access with acquire; or two launches"
}

// actor names a warp, with its role at an instruction.
func (cl *cluster) actor(w *warp, in *inst) string {
	name := cl.warpNames([]*warp{w})
	if role := in.role; role != "" {
		return role + " " + name
	}
	return name
}
