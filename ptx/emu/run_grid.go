package emu

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/internal/causal"
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
	smem      int // bytes of a CTA's static and dynamic shared memory together
	spinLimit int
	// helpers is a channel of warps that have products to multiply. It is nil without helper
	// goroutines.
	helpers chan *warp

	races  *globalRaces // nil without race checks
	before []*grid      // earlier launches of the stream that may still run
	number int          // number of the launch in the stream
	base   int64        // number of the launch's first cluster among all clusters of the stream
	// finished is the set of launches that are known to have ended when this launch has ended.
	// triggered is the set that is known to have ended when the next launch starts.
	finished, triggered causal.Launches
	image               uint64 // address of the variables of the kernel's module
	workspace           uint64 // address of a cooperative launch's workspace
	clusters            int64
	room                int64 // number of clusters whose registers and shared memory fit in HostBytes
	stop                atomic.Bool
	progress            atomic.Uint64 // counts the rounds in which some cluster made progress
	changes             atomic.Uint64 // counts the atomics that changed memory

	counters []*counter // counters of all clusters, for the report
	printing sync.Mutex // held during calls of launch.Print

	mu   sync.Mutex
	next int64 // number of the cluster that starts next
	made int64 // number of clusters that have been allocated
	// repeating is the set of clusters that have repeated their instructions since the count of
	// changes was repeatAt. finishes counts the clusters that have ended.
	repeating map[*cluster]bool
	repeatAt  uint64
	finishes  int64
	ended     []*cluster
	fault     *Fault
	at        int64 // number of the cluster that has the fault
}

func (g *grid) where(line int) string {
	if g.launch.Where == nil {
		return g.kernel.Source(line)
	}
	return g.launch.Where(line)
}

// unravel returns the coordinates of linear index n in a grid of shape dims. x varies fastest.
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

// end releases the launch's memory and returns its result.
func (g *grid) end(ctx context.Context) error {
	for _, cl := range g.ended {
		cl.leave()
	}
	g.ended = nil
	if err := g.mem.Free(g.workspace); err != nil {
		return err
	}
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

// work runs clusters in one goroutine. It parks a cluster that spins on global memory and runs
// others meanwhile, so that CTAs can wait for each other as on a GPU that holds them all.
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
				cl.idle, cl.others = 0, now // another cluster has made progress, so the polled memory may have changed
			}
		}
		if cl == nil {
			return
		}
		switch cl.run() {
		case finished:
			g.mu.Lock()
			g.finishes++
			g.mu.Unlock()
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

// begin starts the next cluster of the grid. It returns nil if all clusters have started, or if the
// running ones use all the memory that HostBytes allows.
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

// clusterBytes returns the host memory for the registers and shared memory of one cluster.
func (g *grid) clusterBytes() int64 {
	k := g.kernel
	warp := 0
	for b, bytes := range [numBanks]int{bank32: 4 * warpLanes, bank64: 8 * warpLanes, bankPred: 4} {
		warp += k.slots[b] * (bytes + 4) // each register also has a mask of the lanes that have written it
	}
	warp += k.localBytes * warpLanes
	warps := (g.threads + warpLanes - 1) / warpLanes
	return int64(g.cluster.Count()) * int64(warps*warp+g.smem)
}

// report stops the launch. If several clusters have a fault, it keeps the fault of the lowest
// number.
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

// leave returns a finished cluster's memory to the pools. It is called only at the end of the
// launch, because race findings may name the cluster's warps until then.
func (cl *cluster) leave() {
	for _, w := range cl.warps {
		w.settle()
		w.cta = nil
		warpPool.Put(w)
	}
	for _, c := range cl.ctas {
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
	cl.moved, cl.looked, cl.others, cl.fresh = false, false, 0, true
	cl.finite = g.launch.NaNs
	cl.races, cl.unwritten = nil, nil
	cl.timeline, cl.traced = nil, false
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
		c.shared.reset(g.kernel, g.smem)
		c.shared.proxy.reset(g.kernel.asyncShared && !g.launch.Races, sharedBase+g.smem, g.threads)
		c.bars = [16]namedBarrier{}
		c.freeRegs, c.triggered, c.visits = 0, false, nil
		c.trace = g.traced(c)
		cl.traced = cl.traced || c.trace != nil
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
