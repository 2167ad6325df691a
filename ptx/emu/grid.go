package emu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/internal/causal"
)

// Timing selects when asynchronous work (cp.async, TMA, wgmma) completes.
type Timing uint8

// The timings. Early hides missing waits; Late and Random expose them.
const (
	// Early completes work as soon as it is issued.
	Early Timing = iota
	// Late completes work when a wait forces it or no warp can run otherwise.
	Late
	// Random completes work at random moments and runs warps in random order.
	Random
	// Chosen is Late with the order of steps that Launch.Choices gives. All clusters run
	// together, and races are looked for.
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
	Grid, Block [3]int // zero fields count as one
	// Cluster is the shape of a cluster in CTAs. The zero value means the kernel's own shape,
	// or one CTA; single zero fields count as one.
	Cluster [3]int
	// SharedBytes is the dynamic shared memory of a CTA.
	SharedBytes int
	// Params is the packed parameter buffer, laid out as Kernel.Params says.
	Params []byte
	Timing Timing
	// Seed selects the order under Random.
	Seed uint64
	// Choices selects the order under Chosen. A [Finding] of [Kernel.Explore] holds such
	// choices.
	Choices string
	// Parallel is the number of goroutines the launch may use: one for each cluster, the rest
	// for wgmma products. 0 means GOMAXPROCS.
	Parallel int
	// HostBytes bounds the host memory for registers and shared memory of running clusters; 0
	// means 4 GiB. With a lower bound fewer clusters run at the same time, as on a small chip.
	HostBytes int64
	// SMs is the number of multiprocessors that %nsmid reports; 0 means 132.
	SMs int
	// SpinLimit is the number of warp instructions for which a cluster may poll memory before
	// that counts as a deadlock; 0 means 2^24. Only polling without any store, barrier or copy,
	// and without progress of another cluster, counts. A cluster that does not poll may run 64
	// times as long.
	SpinLimit int
	// StrictProxy also demands proxy fences after cp.async. Shipping kernels omit them.
	StrictProxy bool
	// Races looks for pairs of accesses to shared and global memory that nothing orders, and
	// for matrix descriptors that do not match what TMA wrote. A launch with many products
	// takes about four times as long, a launch with many loads and stores longer still.
	Races bool
	// Stream, if not nil, is the stream of the launch. Programmatic makes the launch a
	// programmatic dependent launch: it may start before its predecessor in the stream has
	// ended. With Races, its accesses are also checked against those of its predecessors.
	// Otherwise the predecessors count as ended.
	Stream       *Stream
	Programmatic bool
	// Report, if not nil, is filled with counts of what the launch did, up to its fault if it
	// has one.
	Report *Report
	// Where returns the source position of a line of the PTX, for messages; nil means
	// Kernel.Source.
	Where func(line int) string
}

// maxGrid is the largest grid.
var maxGrid = [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}

const (
	maxCTAThreads  = 1024
	registersPerSM = 65536
	maxCluster     = 16
	// paramWindow is the generic address of the parameter buffer. It is deliberately no
	// multiple of a tensor map's alignment.
	paramWindow = 1<<60 + ptx.ParamBase
)

// grid is one launch in progress.
type grid struct {
	kernel    *Kernel
	mem       *Memory
	launch    Launch
	params    []byte
	size      [3]int
	block     [3]int
	threads   int
	cluster   ptx.Dims
	smem      int // shared bytes of a CTA, static and dynamic
	spinLimit int
	// helpers receives warps that have products to multiply; nil without helpers.
	helpers chan *warp

	races  *globalRaces // nil if races are not looked for
	before []*grid      // predecessors in the stream that may still run
	number int          // of the launch in the stream
	base   int64        // number of the launch's first cluster in the stream
	// finished is the set of launches known to have ended when this launch has ended; triggered
	// is the set known to have ended when the next launch starts.
	finished, triggered causal.Launches
	image               uint64 // address of the module's variables
	clusters            int64
	room                int64 // number of clusters that fit in HostBytes
	stop                atomic.Bool
	progress            atomic.Uint64 // rounds in which some cluster made progress

	counters []*counter // of all clusters, for the report

	mu    sync.Mutex
	next  int64 // the cluster that starts next
	made  int64 // clusters that were given memory
	ended []*cluster
	fault *Fault
	at    int64 // cluster of fault
}

func (g *grid) where(line int) string {
	if g.launch.Where == nil {
		return g.kernel.Source(line)
	}
	return g.launch.Where(line)
}

// allFrom1 reports whether each extent is between 1 and maxCluster.
func allFrom1(d ptx.Dims) bool {
	for _, n := range d {
		if n < 1 || n > maxCluster {
			return false
		}
	}
	return true
}

// unravel returns the coordinates of linear index n in a grid of shape dims, x first.
func unravel(n int, dims [3]int) [3]int {
	return [3]int{n % dims[0], n / dims[0] % dims[1], n / dims[0] / dims[1]}
}

// clusterIndex returns the coordinates of cluster i, and the shape of the grid in clusters.
func (g *grid) clusterIndex(i int64) (index, count [3]int) {
	for d := range count {
		count[d] = g.size[d] / g.cluster[d]
	}
	return unravel(int(i), count), count
}

func atLeastOne(d [3]int) [3]int {
	for i := range d {
		if d[i] == 0 {
			d[i] = 1
		}
	}
	return d
}

// Launch runs the kernel to its end. The error is a *Fault if the kernel broke a rule, ctx's
// error if ctx ended first, and otherwise names the invalid part of the launch.
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
	if spare := int64(workers) - g.clusters; spare > 0 && len(k.classes) > 0 {
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
	if l.Report != nil {
		errors.As(err, &l.Report.Fault)
	}
	return err
}

// end releases what the launch holds and returns its result.
func (g *grid) end(ctx context.Context) error {
	for _, cl := range g.ended {
		cl.leave()
	}
	g.ended = nil
	if s := g.launch.Stream; s != nil {
		s.end(g)
	}
	switch {
	case g.fault != nil:
		return g.fault
	case g.stop.Load():
		return context.Cause(ctx)
	}
	return nil
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
	ctas := int64(1)
	for i, most := range maxGrid {
		if g.size[i] < 1 || g.size[i] > most || g.block[i] < 1 || g.block[i] > maxCTAThreads {
			return nil, fmt.Errorf("grid is %v of blocks %v, want 1 to %v blocks and 1 to %d threads in each dimension", l.Grid, l.Block, maxGrid, maxCTAThreads)
		}
		ctas *= int64(g.size[i])
	}
	g.threads = g.block[0] * g.block[1] * g.block[2]
	switch {
	case g.threads > maxCTAThreads:
		return nil, fmt.Errorf("a CTA has %d threads, want at most %d", g.threads, maxCTAThreads)
	case e.MaxThreads > 0 && g.threads > e.MaxThreads:
		return nil, fmt.Errorf("a CTA has %d threads, .maxntid allows %d", g.threads, e.MaxThreads)
	case e.Block.Count() > 0 && g.block != e.Block:
		return nil, fmt.Errorf("a CTA is %d threads, .reqntid wants %d", g.block, e.Block)
	case !allFrom1(g.cluster) || g.cluster.Count() > maxCluster || e.Cluster.Count() > 0 && g.cluster != e.Cluster:
		return nil, fmt.Errorf("a cluster is %d CTAs, want at most %d in all and the kernel's own shape %d", g.cluster, maxCluster, e.Cluster)
	case g.size[0]%g.cluster[0] != 0 || g.size[1]%g.cluster[1] != 0 || g.size[2]%g.cluster[2] != 0:
		return nil, fmt.Errorf("grid is %d CTAs, want a multiple of the cluster's %d", g.size, g.cluster)
	case len(l.Params) != k.ParamBytes():
		return nil, fmt.Errorf("parameters have %d bytes, the kernel wants %d", len(l.Params), k.ParamBytes())
	case l.SharedBytes < 0 || l.SharedBytes > sharedMaxBytes || g.smem > sharedMaxBytes:
		return nil, fmt.Errorf("a CTA has %d static and %d dynamic bytes of shared memory, want at most %d", k.staticShared, l.SharedBytes, sharedMaxBytes)
	case mem == nil:
		return nil, errors.New("memory is nil")
	}
	if l.Races {
		g.races = &globalRaces{pages: map[uint64]*[pageBytes / 4]shadowWord{}, signals: signals{}}
	}
	g.clusters = ctas / int64(g.cluster.Count())
	if l.HostBytes <= 0 {
		l.HostBytes = 4 << 30
	}
	if g.room = l.HostBytes / g.clusterBytes(); g.room == 0 {
		return nil, fmt.Errorf("a cluster needs %d bytes of host memory for registers and shared memory, HostBytes allows %d", g.clusterBytes(), l.HostBytes)
	}
	if l.Timing == Chosen && g.room < g.clusters {
		return nil, fmt.Errorf("Timing Chosen runs all %d clusters together, but HostBytes, %d, is enough for %d", g.clusters, l.HostBytes, g.room)
	}
	var err error
	if g.image, err = mem.image(k.module); err != nil {
		return nil, err
	}
	if l.Stream != nil {
		l.Stream.begin(g)
	}
	if g.spinLimit = l.SpinLimit; g.spinLimit <= 0 {
		g.spinLimit = 1 << 24
	}
	return g, nil
}

// work runs clusters in one goroutine. It parks a cluster that spins on global memory while
// others run, so that CTAs may wait for each other as on a GPU that holds them all.
func (g *grid) work() {
	var waiting, free []*cluster
	defer func() {
		g.mu.Lock()
		g.ended = append(g.ended, free...)
		g.mu.Unlock()
	}()
	for !g.stop.Load() {
		cl := g.begin(&free)
		if cl == nil && len(waiting) > 0 {
			cl, waiting = waiting[0], waiting[1:]
			runtime.Gosched()
			if now := g.progress.Load(); now != cl.others {
				cl.idle, cl.others = 0, now // another cluster may have written what this one polls
			}
		}
		if cl == nil {
			return
		}
		switch cl.run() {
		case finished:
			g.progress.Add(1)
			free = append(free, cl)
		case parked:
			cl.others = g.progress.Load()
			waiting = append(waiting, cl)
		case broken:
			g.report(cl)
			return
		case stopped:
			return
		}
	}
}

// begin starts the next cluster of the grid. It returns nil if all have started, or if the
// running clusters use all memory.
func (g *grid) begin(free *[]*cluster) *cluster {
	g.mu.Lock()
	n := len(*free)
	if g.next == g.clusters || n == 0 && g.made == g.room {
		g.mu.Unlock()
		return nil
	}
	i := g.next
	g.next++
	if n == 0 {
		g.made++
	}
	g.mu.Unlock()
	var cl *cluster
	if n > 0 {
		cl, *free = (*free)[n-1], (*free)[:n-1]
	} else {
		cl = g.newCluster()
		g.count(cl)
	}
	cl.reset(i)
	return cl
}

// clusterBytes returns the host memory that one cluster's registers and shared memory need.
func (g *grid) clusterBytes() int64 {
	k := g.kernel
	warp := 0
	for b, bytes := range [numBanks]int{bank32: 4 * warpLanes, bank64: 8 * warpLanes, bankPred: 4} {
		warp += k.slots[b] * (bytes + 4) // the mask of lanes that have written it
	}
	warp += k.localBytes * warpLanes
	warps := (g.threads + warpLanes - 1) / warpLanes
	return int64(g.cluster.Count()) * int64(warps*warp+g.smem)
}

// report keeps the fault of the cluster with the lowest number and stops the launch.
func (g *grid) report(cl *cluster) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fault == nil || cl.number < g.at {
		g.fault, g.at = cl.fault, cl.number
	}
	g.stop.Store(true)
}

func (g *grid) newCluster() *cluster {
	cl := &cluster{grid: g}
	for rank := range g.cluster.Count() {
		c := &cta{cluster: cl, rank: rank, shared: sharedPool.Get().(*sharedMemory)}
		for id := range (g.threads + warpLanes - 1) / warpLanes {
			w := newWarp(g.kernel)
			w.cta, w.id = c, id
			c.warps = append(c.warps, w)
			cl.warps = append(cl.warps, w)
		}
		for i := 0; i+4 <= len(c.warps); i += 4 {
			c.groups = append(c.groups, &warpgroup{warps: [4]*warp(c.warps[i : i+4])})
		}
		cl.ctas = append(cl.ctas, c)
	}
	return cl
}

// leave returns the memory of a finished cluster to the pools. It is called at the end of the
// launch because race reports may name the cluster's warps until then.
func (cl *cluster) leave() {
	for _, w := range cl.warps {
		w.settle()
		w.cta = nil
		warpPool.Put(w)
	}
	for _, c := range cl.ctas {
		c.shared.shadow = nil
		sharedPool.Put(c.shared)
	}
}

// reset prepares the cluster to run as number i of the grid.
func (cl *cluster) reset(i int64) {
	g := cl.grid
	cl.number = i
	cl.rng = rand.New(rand.NewPCG(g.launch.Seed, uint64(i)))
	cl.loads, cl.events, cl.order, cl.fault, cl.last = nil, 1, 0, nil, nil
	cl.barrier, cl.steps, cl.idle, cl.polls, cl.polled = clusterBarrier{}, 0, 0, 0, false
	cl.moved, cl.looked, cl.others = false, false, 0
	cl.races, cl.unwritten = nil, nil
	cl.timeline = nil
	if g.launch.Report != nil && i == 0 {
		cl.timeline = &g.launch.Report.Timeline
		*cl.timeline = Timeline{Warps: make([]WarpTimeline, len(cl.ctas[0].warps))}
	}
	cl.index, cl.count = g.clusterIndex(i)
	for rank, c := range cl.ctas {
		c.inCluster = unravel(rank, g.cluster)
		for d := range c.index {
			c.index[d] = cl.index[d]*g.cluster[d] + c.inCluster[d]
		}
		c.linear = c.index[0] + g.size[0]*(c.index[1]+g.size[1]*c.index[2])
		c.shared.reset(g.smem)
		c.shared.proxy.reset(g.kernel.asyncShared && !g.launch.Races, sharedBase+g.smem, g.threads)
		c.bars = [16]namedBarrier{}
		c.freeRegs, c.triggered = 0, false
		for _, wg := range c.groups {
			wg.reset()
		}
		for id, w := range c.warps {
			w.reset(c, id, g.threads)
		}
	}
	if g.launch.Races {
		cl.races = newRaces(cl)
	}
}
