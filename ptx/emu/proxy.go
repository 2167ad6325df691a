package emu

// Ordinary stores to shared memory and the reads and writes of wgmma and TMA go
// through different proxies: between them the writer, or the later thread after
// it has synchronised with the writer, must execute fence.proxy.async.
//
// Each word that an ordinary store wrote remembers its thread and the time; an
// access through the async proxy is a race when neither that thread nor its own
// has fenced since. That the two synchronised is not
// checked: with Launch.Races, races.go takes the place of this.

// proxyState is the ordinary stores of a CTA that may lack a fence.
type proxyState struct {
	on     bool // the kernel uses shared memory through the async proxy
	clock  uint64
	words  []uint64 // for each 4 bytes: time<<10 | thread, 0 when nothing is missing
	fenced []uint64 // for each thread, the time of its latest fence
}

const proxyThreadBits = 10 // maxCTAThreads

func (p *proxyState) reset(on bool, bytes, threads int) {
	p.on, p.clock = on, 0
	if !on {
		return
	}
	p.words = sized(p.words, bytes/4+1)
	p.fenced = sized(p.fenced, (threads+warpLanes-1)/warpLanes*warpLanes)
	clear(p.words)
	clear(p.fenced)
}

// wrote notes an ordinary store by a thread.
func (p *proxyState) wrote(offset, n uint32, thread int) {
	if !p.on {
		return
	}
	p.clock++
	for i := offset / 4; i <= (offset+n-1)/4; i++ {
		p.words[i] = p.clock<<proxyThreadBits | uint64(thread)
	}
}

// replaced notes that asynchronous copies wrote the bytes.
func (p *proxyState) replaced(offset, n uint32) {
	if p.on {
		clear(p.words[offset/4 : (offset+n-1)/4+1])
	}
}

// fence notes a fence.proxy.async.
func (p *proxyState) fence(thread int) {
	if p.on {
		p.clock++
		p.fenced[thread] = p.clock
	}
}

// check reports a store that an access through the async proxy, by a thread that
// fenced last at the given time, may come ahead of. does is "reads" or "overwrites".
func (p *proxyState) check(does string, offset, n uint32, fenced uint64) *problem {
	if !p.on {
		return nil
	}
	for i := offset / 4; i <= (offset+n-1)/4; i++ {
		v := p.words[i]
		if v == 0 {
			continue
		}
		thread, when := v&(maxCTAThreads-1), v>>proxyThreadBits
		if p.fenced[thread] < when && fenced < when {
			return problemf(ProxyRace, "the async proxy %s shared address %#x, which thread %d of warp %d stored without a fence.proxy.async since",
				does, i*4, thread%warpLanes, thread/warpLanes)
		}
		p.words[i] = 0
	}
	return nil
}

// latestFence is the time of the latest fence of a warp's lanes.
func (w *warp) latestFence(lanes uint32) uint64 {
	p := &w.cta.shared.proxy
	latest := uint64(0)
	if p.on {
		for m := lanes; m != 0; m &= m - 1 {
			latest = max(latest, p.fenced[w.id*warpLanes+first(m)])
		}
	}
	return latest
}
