package driver

// Target describes a chip. It is comparable. Kernels are chosen for a Target. If a choice
// depends on the Target, the Target is part of the choice's cache key.
type Target struct {
	// Name is the product name that the driver reports.
	Name string
	// Arch is the PTX .target with all features of the chip, such as "sm_90a".
	Arch string
	// Major and Minor are the compute capability.
	Major, Minor int
	// SMs is the number of multiprocessors.
	SMs int
	// SharedBytesPerCTA is the largest shared memory of one CTA.
	SharedBytesPerCTA int
	// SharedBytesPerSM is the shared memory of one multiprocessor.
	SharedBytesPerSM int
	// RegistersPerSM counts 32-bit registers.
	RegistersPerSM int
	// L2Bytes is the size of the second-level cache.
	L2Bytes int
	// ClockKHz and MemoryClockKHz are the highest clocks.
	ClockKHz, MemoryClockKHz int
	// MemoryBusBits is the width of the memory bus.
	MemoryBusBits int
}

// H200 is NVIDIA's H200 (SXM), 132 SMs.
func H200() Target {
	return Target{
		Name: "NVIDIA H200", Arch: "sm_90a", Major: 9, Minor: 0, SMs: 132,
		SharedBytesPerCTA: 232448, SharedBytesPerSM: 233472, RegistersPerSM: 65536,
		L2Bytes: 60 << 20, ClockKHz: 1980000, MemoryClockKHz: 3201000, MemoryBusBits: 6144,
	}
}

// H100 is NVIDIA's H100 (SXM), 132 SMs.
func H100() Target {
	t := H200()
	t.Name, t.L2Bytes, t.MemoryClockKHz, t.MemoryBusBits = "NVIDIA H100 80GB HBM3", 50<<20, 2619000, 5120
	return t
}
