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
)

// Timing is when asynchronous work (cp.async, TMA, wgmma) completes.
type Timing uint8

// Timings. Early hides missing waits, Late and Random show them.
const (
	// Early completes work when it is issued.
	Early Timing = iota
	// Late completes it when a wait forces it or nothing else can run.
	Late
	// Random completes it at random moments, and runs warps in random order.
	Random
	// Chosen is Late in the order of Launch.Choices, all clusters together, and looks
	// for races.
	Chosen
)

var timingNames = [...]string{"early", "late", "random", "chosen"}

// String is the timing in a word.
func (t Timing) String() string {
	if int(t) < len(timingNames) {
		return timingNames[t]
	}
	return fmt.Sprintf("Timing(%d)", uint8(t))
}

// Launch is the shape of one kernel launch.
type Launch struct {
	Grid, Block [3]int // zero fields count as one
	// Cluster is the CTAs of a cluster; zero means the kernel's own, or 1, and
	// other zero fields count as one.
	Cluster [3]int
	// SharedBytes is dynamic shared memory of a CTA.
	SharedBytes int
	// Params is the packed parameter buffer, laid out as Kernel.Params says.
	Params []byte
	Timing Timing
	// Seed chooses among the orders of Random.
	Seed uint64
	// Choices are those of Chosen, as a [Finding] of [Kernel.Explore] has them.
	Choices string
	// Parallel is how many goroutines the launch may use: one a cluster, and
	// with fewer clusters than that the rest for products. 0 means GOMAXPROCS.
	Parallel int
	// HostBytes bounds the host's memory for registers and shared memory of
	// the clusters under way; 0 means 4 GiB. Where it is short, fewer clusters
	// are under way, as on a small chip.
	HostBytes int64
	// SMs is what %smid counts to; 0 means 132.
	SMs int
	// SpinLimit is how many warp instructions a cluster may poll memory
	// without any store, barrier or copy, and without progress of another
	// cluster, before that counts as a deadlock; 0 means 2^24. A cluster that
	// does not poll may run 64 times as long.
	SpinLimit int
	// StrictProxy also demands proxy fences behind cp.async, which shipping
	// kernels omit.
	StrictProxy bool
	// Races looks for accesses to shared and global memory that nothing orders,
	// whatever order they happen to run in, and for matrix descriptors that do not
	// fit what TMA wrote. Products take some four times as long, loops of loads and
	// stores more.
	Races bool
	// Stream, if not nil, is the stream of the launch. Programmatic lets it begin before
	// the launch before it there has ended, as griddepcontrol says (programmatic
	// dependent launch): with Races, accesses are named that race with those of launches
	// before. Else these are past.
	Stream       *Stream
	Programmatic bool
	// Report, if not nil, is filled with what the launch did, up to its fault if it
	// has one. A launch without takes no longer for it.
	Report *Report
	// Where gives the Go line behind a line of the PTX, for messages; nil means
	// Kernel.Source.
	Where func(line int) string
}

// maxGrid is the largest grid.
var maxGrid = [3]int{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}

const (
	maxCTAThreads  = 1024
	registersPerSM = 65536
	maxCluster     = 16
	// paramWindow is the generic address of the parameter buffer, which does
	// not start at a multiple of a tensor map's alignment.
	paramWindow = 1<<60 + ptx.ParamBase
)

// grid is one launch under way.
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
	// helpers takes warps with products to multiply; nil without helpers.
	helpers chan *warp

	races  *globalRaces // nil: not looked for
	before []*grid      // launches of the stream that may still run
	number int          // of the launch in the stream
	base   int64        // number of its first cluster there
	// finished are the launches that are known to have ended when this one has,
	// triggered those when the next one begins.
	finished, triggered launches
	image               uint64 // address of the module's variables
	clusters            int64
	room                int64 // clusters that have memory
	stop                atomic.Bool
	progress            atomic.Uint64 // rounds in which some cluster got somewhere

	counters []*counter // of all clusters, for the report

	mu    sync.Mutex
	next  int64 // the cluster that begins next
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

// allFrom1 reports whether each extent is from 1 to the largest cluster's.
func allFrom1(d ptx.Dims) bool {
	for _, n := range d {
		if n < 1 || n > maxCluster {
			return false
		}
	}
	return true
}

// unravel is the place of number n among dims, x first.
func unravel(n int, dims [3]int) [3]int {
	return [3]int{n % dims[0], n / dims[0] % dims[1], n / dims[0] / dims[1]}
}

// clusterIndex is the place of cluster i in the grid, and the grid in clusters.
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

// Launch runs the kernel to its end. The error is a *Fault when the kernel
// broke a rule, ctx's error when ctx ended first, or says which part of the
// launch is wrong.
func (k *Kernel) Launch(ctx context.Context, mem *Memory, l Launch) error {
	if l.Timing == Chosen {
		choices, err := parseChoices(l.Choices)
		if err != nil {
			return fmt.Errorf("launch of kernel %s: %w", k.entry.Name, err)
		}
		s, err := k.follow(ctx, mem, l, choices)
		if err == nil && s.wrong != nil {
			err = fmt.Errorf("launch of kernel %s: choice %d:%d: no such actor can take that step", k.entry.Name, s.wrong.step, s.wrong.actor)
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

// end gives back what the launch took and says how it ended.
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
			return nil, fmt.Errorf("grid %v of blocks %v, must be from 1 to %v and, of each block, %d", l.Grid, l.Block, maxGrid, maxCTAThreads)
		}
		ctas *= int64(g.size[i])
	}
	g.threads = g.block[0] * g.block[1] * g.block[2]
	switch {
	case g.threads > maxCTAThreads:
		return nil, fmt.Errorf("%d threads in a CTA, at most %d", g.threads, maxCTAThreads)
	case e.MaxThreads > 0 && g.threads > e.MaxThreads:
		return nil, fmt.Errorf("%d threads in a CTA, .maxntid allows %d", g.threads, e.MaxThreads)
	case e.Block.Count() > 0 && g.block != e.Block:
		return nil, fmt.Errorf("CTAs of %d threads, .reqntid wants %d", g.block, e.Block)
	case !allFrom1(g.cluster) || g.cluster.Count() > maxCluster || e.Cluster.Count() > 0 && g.cluster != e.Cluster:
		return nil, fmt.Errorf("clusters of %d CTAs, must be at most %d and what the kernel wants, %d", g.cluster, maxCluster, e.Cluster)
	case g.size[0]%g.cluster[0] != 0 || g.size[1]%g.cluster[1] != 0 || g.size[2]%g.cluster[2] != 0:
		return nil, fmt.Errorf("grid of %d CTAs is no multiple of the cluster's %d", g.size, g.cluster)
	case len(l.Params) != k.ParamBytes():
		return nil, fmt.Errorf("%d bytes of parameters, the kernel takes %d", len(l.Params), k.ParamBytes())
	case l.SharedBytes < 0 || l.SharedBytes > sharedMaxBytes || g.smem > sharedMaxBytes:
		return nil, fmt.Errorf("%d static and %d dynamic bytes of shared memory in a CTA, at most %d", k.staticShared, l.SharedBytes, sharedMaxBytes)
	case mem == nil:
		return nil, errors.New("no memory")
	}
	if l.Races {
		g.races = &globalRaces{pages: map[uint64]*[pageBytes / 4]shadowWord{}, signals: signals{}}
	}
	g.clusters = ctas / int64(g.cluster.Count())
	if l.HostBytes <= 0 {
		l.HostBytes = 4 << 30
	}
	if g.room = l.HostBytes / g.clusterBytes(); g.room == 0 {
		return nil, fmt.Errorf("a cluster takes %d bytes of the host's memory for registers and shared memory, at most %d", g.clusterBytes(), l.HostBytes)
	}
	if l.Timing == Chosen && g.room < g.clusters {
		return nil, fmt.Errorf("an order of choice has all %d clusters together, memory is for %d: HostBytes is %d", g.clusters, g.room, l.HostBytes)
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

// work runs clusters, one goroutine's share. A cluster that spins on global
// memory is parked while others run, so that CTAs may wait for each other as
// on a GPU that holds them all.
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
				cl.idle, cl.others = 0, now // what it waits for may have come
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

// begin starts the grid's next cluster: nil when all have begun, or while those
// under way take the memory that there is.
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

// clusterBytes is the host's memory for the registers and the shared memory of
// a cluster.
func (g *grid) clusterBytes() int64 {
	k := g.kernel
	warp := 0
	for b, bytes := range [numBanks]int{bank32: 4 * warpLanes, bank64: 8 * warpLanes, bankPred: 4} {
		warp += k.slots[b] * (bytes + 4) // and who of the lanes has written it
	}
	warp += k.localBytes * warpLanes
	warps := (g.threads + warpLanes - 1) / warpLanes
	return int64(g.cluster.Count()) * int64(warps*warp+g.smem)
}

// report keeps the fault of the lowest cluster and stops the launch.
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

// leave gives the memory of a finished cluster to later launches.
// Reports of races may name its warps until the launch ends.
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

// reset starts the cluster's life as number i of the grid.
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
