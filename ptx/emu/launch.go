package emu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"sonicmoe/ptx"
)

// Timing selects when asynchronous work (cp.async, TMA, wgmma) completes.
type Timing uint8

// The timings. Early hides missing waits; Late and Random expose them.
const (
	// Early completes work as soon as it is issued.
	Early Timing = iota
	// Late completes work only when a wait forces it, or when no warp can run otherwise.
	Late
	// Random completes work at random moments and runs warps in random order.
	Random
	// Chosen completes work as Late does, and runs steps in the order that Launch.Choices gives.
	// All clusters run together, and races are looked for.
	Chosen
)

var timingNames = [...]string{"early", "late", "random", "chosen"}

// String returns the timing's name.
func (t Timing) String() string {
	if int(t) < len(timingNames) {
		return timingNames[t]
	}
	return fmt.Sprintf("Timing(%d)", uint8(t))
}

// Launch describes one kernel launch.
type Launch struct {
	Grid, Block [3]int // extents in x, y and z; zero fields count as one
	// Cluster is the shape of a cluster in CTAs. If all fields are zero, the kernel's own shape
	// applies, or one CTA if it has none. Otherwise a zero field counts as one.
	Cluster [3]int
	// SharedBytes is the size of a CTA's dynamic shared memory.
	SharedBytes int
	// Params is the packed parameter buffer. Kernel.Params describes its layout.
	Params []byte
	Timing Timing
	// Seed selects the order under Random.
	Seed uint64
	// Choices selects the order under Chosen. [Kernel.Explore] returns such choices in a [Finding].
	Choices string
	// Parallel is the number of goroutines that the launch may use. Each running cluster takes one;
	// the rest compute wgmma products. 0 means GOMAXPROCS.
	Parallel int
	// HostBytes bounds the host memory for registers and shared memory of the running clusters; 0
	// means 4 GiB. With a lower bound fewer clusters run at the same time, as on a small chip.
	HostBytes int64
	// SMs is the number of multiprocessors that %nsmid reports; 0 means 132.
	SMs int
	// SpinLimit is the number of warp instructions for which a cluster may poll memory before the
	// emulator reports a deadlock; 0 means 2^24. Polling counts only while the cluster executes no
	// store, barrier or copy and no other cluster makes progress. A cluster that does not poll may
	// run 64 times as long. If warps return to exactly the state that they had before, the deadlock
	// is reported at once.
	SpinLimit int
	// StrictProxy also demands proxy fences after cp.async, as the manual does. Widely used kernels
	// omit them.
	StrictProxy bool
	// Races makes the emulator look for pairs of accesses to shared and global memory that nothing
	// orders, and for matrix descriptors that do not match what TMA wrote. A launch that mostly
	// multiplies then takes about four times as long, a launch that mostly loads and stores longer
	// still.
	Races bool
	// NaNs makes each cluster report its first instruction that turns finite numbers into a NaN or
	// infinity, or that loads a NaN as a float.
	NaNs bool
	// Unread makes a launch with Races report a store to shared memory if wgmma reads some of its
	// bytes and nothing reads the others: the matrix descriptor may be wrong.
	Unread bool
	// GoOn, if not nil, is called with each finding after which a launch can go on: races, missing
	// proxy fences, CTA lifetimes, reads of uninitialised shared memory, and notes. The launch goes
	// on if GoOn returns true. If GoOn is nil, the launch goes on after notes only.
	GoOn func(*Fault) bool
	// Known, if not nil, is called before GoOn, with the same findings. If it returns true, the
	// launch goes on and does not report the finding.
	Known func(*Fault) bool
	// Stream, if not nil, is the stream of the launch. Programmatic makes the launch a programmatic
	// dependent launch, which may start before its predecessor in the stream has ended. With Races,
	// the accesses of a programmatic launch are also checked against those of its predecessors.
	// Without Programmatic, the predecessors have ended.
	Stream       *Stream
	Programmatic bool
	// Cooperative makes the launch a cooperative one: all CTAs run at the same time, so CUDA's
	// cooperative_groups::grid_group::sync works.
	Cooperative bool
	// Report, if not nil, is filled with counts of what the launch did. If the launch ends with a
	// fault, it has the counts up to the fault.
	Report *Report
	// Trace, if not nil, is filled with a record of the grid's first CTAs, up to the fault if there is
	// one. With several runs of a launch, it is the record of the last. Timing Chosen has no trace.
	Trace *Trace
	// Print, if not nil, is called with the text of each printf of the kernel, by one goroutine at a
	// time. With several runs of a launch, only the first run prints.
	Print func(text string)
	// Where returns the source position of a line of the PTX, for messages. nil means
	// Kernel.Source.
	Where func(line int) string
}

// maxGrid is the largest extent of a grid in x, y and z.
var maxGrid = [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}

const (
	maxCTAThreads  = 1024
	registersPerSM = 65536
	maxCluster     = 16
	// paramWindow is the generic address of the parameter buffer. Like the buffer's address in the
	// chip's constant bank, it is not a multiple of a tensor map's alignment (see [ptx.ParamBase]).
	paramWindow = 1<<60 + ptx.ParamBase
)

// allFrom1 reports whether each extent of a cluster is between 1 and maxCluster.
func allFrom1(d ptx.Dims) bool {
	for _, n := range d {
		if n < 1 || n > maxCluster {
			return false
		}
	}
	return true
}

func atLeastOne(d [3]int) [3]int {
	for i := range d {
		if d[i] == 0 {
			d[i] = 1
		}
	}
	return d
}

// Launch runs the kernel to its end. The error is a *Fault if the kernel broke a rule, and ctx's
// error if ctx ended first. Any other error names what is invalid in the launch.
func (k *Kernel) Launch(ctx context.Context, mem *Memory, l Launch) error {
	if l.Timing == Chosen {
		choices, err := parseChoices(l.Choices)
		if err != nil {
			return fmt.Errorf("launch of kernel %s: %w", k.entry.Name, err)
		}
		s, err := k.follow(ctx, mem, l, choices)
		if err == nil && s.wrong != nil {
			err = fmt.Errorf("launch of kernel %s: choice %d:%d: actor %d cannot take step %d", k.entry.Name, s.wrong.step, s.wrong.actor, s.wrong.actor, s.wrong.step)
		}
		return err
	}
	g, err := k.newGrid(mem, l)
	if err != nil {
		return fmt.Errorf("launch of kernel %s: %w", k.entry.Name, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { g.stop.Store(true) })()
	workers := l.Parallel
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var wg, helping sync.WaitGroup
	if spare := int64(workers) - g.clusters; spare > 0 && len(k.classes) > 0 && !l.NaNs {
		g.helpers = make(chan *warp, int(g.clusters)*g.cluster.Count()*((g.threads+warpLanes-1)/warpLanes))
		for range spare {
			helping.Go(func() { help(g.helpers) })
		}
	}
	for range min(int64(workers), g.clusters) - 1 {
		wg.Go(g.work)
	}
	g.work()
	wg.Wait()
	if l.Report != nil {
		g.fill(l.Report)
	}
	if g.helpers != nil {
		close(g.helpers)
		helping.Wait()
	}
	err = g.end(ctx)
	if l.Trace != nil {
		errors.As(err, &l.Trace.Fault)
		l.Trace.finish(g.where)
	}
	if l.Report != nil {
		errors.As(err, &l.Report.Fault)
	}
	return err
}

// checkShape refuses a launch with wrong extents or sizes. It sets the number of threads of a CTA
// and returns the number of CTAs.
func (g *grid) checkShape(l Launch) (ctas int64, err error) {
	e := g.kernel.entry
	ctas = 1
	for i, most := range maxGrid {
		if g.size[i] < 1 || g.size[i] > most || g.block[i] < 1 || g.block[i] > maxCTAThreads {
			return 0, fmt.Errorf("grid is %v of blocks %v, want 1 to %v blocks and 1 to %d threads in each dimension", l.Grid, l.Block, maxGrid, maxCTAThreads)
		}
		ctas *= int64(g.size[i])
	}
	g.threads = g.block[0] * g.block[1] * g.block[2]
	switch {
	case g.threads > maxCTAThreads:
		return 0, fmt.Errorf("a CTA has %d threads, want at most %d", g.threads, maxCTAThreads)
	case e.MaxThreads > 0 && g.threads > e.MaxThreads:
		return 0, fmt.Errorf("a CTA has %d threads, .maxntid allows %d", g.threads, e.MaxThreads)
	case e.Block.Count() > 0 && g.block != e.Block:
		return 0, fmt.Errorf("a CTA is %d threads, .reqntid wants %d", g.block, e.Block)
	case !allFrom1(g.cluster) || g.cluster.Count() > maxCluster || e.Cluster.Count() > 0 && g.cluster != e.Cluster:
		return 0, fmt.Errorf("a cluster is %d CTAs, want at most %d in all and the kernel's own shape %d", g.cluster, maxCluster, e.Cluster)
	case g.size[0]%g.cluster[0] != 0 || g.size[1]%g.cluster[1] != 0 || g.size[2]%g.cluster[2] != 0:
		return 0, fmt.Errorf("grid is %d CTAs, want a multiple of the cluster's %d", g.size, g.cluster)
	case len(l.Params) != g.kernel.ParamBytes():
		return 0, fmt.Errorf("parameters have %d bytes, the kernel wants %d", len(l.Params), g.kernel.ParamBytes())
	case l.SharedBytes < 0 || l.SharedBytes > sharedMaxBytes || g.smem > sharedMaxBytes:
		return 0, fmt.Errorf("a CTA has %d static and %d dynamic bytes of shared memory, want at most %d", g.kernel.staticShared, l.SharedBytes, sharedMaxBytes)
	}
	return ctas, nil
}

// cooperate allocates the workspace that a cooperative launch needs: a word with the workspace's
// size, and the word of the grid's barrier.
func (g *grid) cooperate(mem *Memory) (err error) {
	if !g.launch.Cooperative {
		return nil
	}
	const bytes = 8
	if g.room < g.clusters {
		return fmt.Errorf("a cooperative launch runs all %d clusters together, but HostBytes is enough for %d", g.clusters, g.room)
	}
	if g.workspace, err = mem.Alloc(bytes); err != nil {
		return err
	}
	return mem.Write(g.workspace, []byte{bytes, 0, 0, 0, 0, 0, 0, 0})
}

func (k *Kernel) newGrid(mem *Memory, l Launch) (*grid, error) {
	l.Races = l.Races || l.Timing == Chosen
	e := k.entry
	g := &grid{kernel: k, mem: mem, launch: l, params: l.Params, size: atLeastOne(l.Grid), block: atLeastOne(l.Block), cluster: atLeastOne(l.Cluster)}
	if l.Cluster == [3]int{} && e.Cluster.Count() > 0 {
		g.cluster = e.Cluster
	}
	g.smem = k.staticShared
	if a := k.dynamicAlign; l.SharedBytes > 0 {
		g.smem = (sharedBase+g.smem+a-1)/a*a - sharedBase + l.SharedBytes
	}
	ctas, err := g.checkShape(l)
	switch {
	case err != nil:
		return nil, err
	case mem == nil:
		return nil, errors.New("memory is nil")
	case l.Trace != nil && l.Timing == Chosen:
		return nil, errors.New("Timing Chosen has no trace, want Early, Late or Random")
	}
	if l.Races {
		g.races = &globalRaces{pages: map[uint64]*shadowPage{}, signals: signals{}}
	}
	g.clusters = ctas / int64(g.cluster.Count())
	if l.Trace != nil {
		l.Trace.prepare(e.Name, ctas)
	}
	if l.HostBytes <= 0 {
		l.HostBytes = 4 << 30
	}
	if g.room = l.HostBytes / g.clusterBytes(); g.room == 0 {
		return nil, fmt.Errorf("a cluster needs %d bytes of host memory for registers and shared memory, HostBytes allows %d", g.clusterBytes(), l.HostBytes)
	}
	if l.Timing == Chosen && g.room < g.clusters {
		return nil, fmt.Errorf("Timing Chosen runs all %d clusters together, but HostBytes, %d, is enough for %d", g.clusters, l.HostBytes, g.room)
	}
	if g.image, err = mem.image(k.module); err != nil {
		return nil, err
	}
	if err := g.cooperate(mem); err != nil {
		return nil, err
	}
	if l.Stream != nil {
		l.Stream.begin(g)
	}
	if l.NaNs {
		k.floats()
	}
	if g.spinLimit = l.SpinLimit; g.spinLimit <= 0 {
		g.spinLimit = 1 << 24
	}
	return g, nil
}
