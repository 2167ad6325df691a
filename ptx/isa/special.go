package isa

// Special is a special register. Instruction mov reads it.
type Special struct {
	Name string
	Type Type
	// Uniform reports whether all lanes of a warp read the same value.
	Uniform bool
	Version Version
	Arch    Arch
}

// Specials lists the special registers. The Reg of an operand is an index into it.
var Specials = []Special{
	{"%tid.x", U32, false, 70, SM70},
	{"%tid.y", U32, false, 70, SM70},
	{"%tid.z", U32, false, 70, SM70},
	{"%ntid.x", U32, true, 70, SM70},
	{"%ntid.y", U32, true, 70, SM70},
	{"%ntid.z", U32, true, 70, SM70},
	{"%ctaid.x", U32, true, 70, SM70},
	{"%ctaid.y", U32, true, 70, SM70},
	{"%ctaid.z", U32, true, 70, SM70},
	{"%nctaid.x", U32, true, 70, SM70},
	{"%nctaid.y", U32, true, 70, SM70},
	{"%nctaid.z", U32, true, 70, SM70},
	{"%laneid", U32, false, 70, SM70},
	{"%lanemask_lt", U32, false, 70, SM70},
	{"%smid", U32, true, 70, SM70},
	{"%lanemask_le", U32, false, 70, SM70},
	{"%lanemask_eq", U32, false, 70, SM70},
	{"%lanemask_ge", U32, false, 70, SM70},
	{"%lanemask_gt", U32, false, 70, SM70},
	{"%warpid", U32, true, 70, SM70},
	{"%nwarpid", U32, true, 70, SM70},
	{"%nsmid", U32, true, 70, SM70},
	{"%gridid", U64, true, 70, SM70},
	{"%dynamic_smem_size", U32, true, 70, SM70},
	{"%total_smem_size", U32, true, 70, SM70},
	{"%aggr_smem_size", U32, true, 81, SM90},
	{"%clock", U32, false, 70, SM70},
	{"%clusterid.x", U32, true, 78, SM90},
	{"%clusterid.y", U32, true, 78, SM90},
	{"%clusterid.z", U32, true, 78, SM90},
	{"%nclusterid.x", U32, true, 78, SM90},
	{"%nclusterid.y", U32, true, 78, SM90},
	{"%nclusterid.z", U32, true, 78, SM90},
	{"%cluster_ctaid.x", U32, true, 78, SM90},
	{"%cluster_ctaid.y", U32, true, 78, SM90},
	{"%cluster_ctaid.z", U32, true, 78, SM90},
	{"%cluster_nctaid.x", U32, true, 78, SM90},
	{"%cluster_nctaid.y", U32, true, 78, SM90},
	{"%cluster_nctaid.z", U32, true, 78, SM90},
	{"%cluster_ctarank", U32, true, 78, SM90},
	{"%cluster_nctarank", U32, true, 78, SM90},
	{"%clock64", U64, false, 70, SM70},
	{"%globaltimer", U64, false, 70, SM70},
	{"%clock_hi", U32, false, 70, SM70},
	{"%envreg0", U32, true, 70, SM70},
	{"%envreg1", U32, true, 70, SM70},
	{"%envreg2", U32, true, 70, SM70},
	{"%reserved_smem_offset_begin", U32, true, 76, SM80},
	{"%reserved_smem_offset_end", U32, true, 76, SM80},
	{"%reserved_smem_offset_cap", U32, true, 76, SM80},
	{"%reserved_smem_offset_0", U32, true, 76, SM80},
	{"%reserved_smem_offset_1", U32, true, 76, SM80},
}

// SpecialNamed returns the index of the special register with that name.
func SpecialNamed(name string) (int, bool) {
	for i := range Specials {
		if Specials[i].Name == name {
			return i, true
		}
	}
	return 0, false
}
