package emu

// Ordinary stores to shared memory go through the generic proxy, reads and writes of wgmma and TMA
// through the async proxy. Between a store and a later access through the async proxy there must be
// a fence.proxy.async: by the thread that stored, or by the accessing thread after the two have
// synchronised.
//
// This file records, for each word, the thread of the latest ordinary store and its time. An access
// through the async proxy is a fault if neither this thread nor the accessing thread has fenced
// since. This file does not check whether the two threads have synchronised. With Launch.Races,
// race.go checks that too, and replaces this file.

// proxyState records the ordinary stores of a CTA after which a fence may be missing.
type proxyState struct {
	on     bool // the kernel accesses shared memory through the async proxy
	clock  uint64
	words  []uint64 // for each 4 bytes, time<<10 | thread of the latest ordinary store; 0 if no fence is missing
	fenced []uint64 // for each thread, the time of its latest fence
}

const proxyThreadBits = 10 // log2 of maxCTAThreads

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

// wrote records an ordinary store by a thread.
func (p *proxyState) wrote(offset, n uint32, thread int) {
	if !p.on {
		return
	}
	p.clock++
	for i := offset / 4; i <= (offset+n-1)/4; i++ {
		p.words[i] = p.clock<<proxyThreadBits | uint64(thread)
	}
}

// replaced records that an asynchronous copy overwrote the bytes, so that they need no fence.
func (p *proxyState) replaced(offset, n uint32) {
	if p.on {
		clear(p.words[offset/4 : (offset+n-1)/4+1])
	}
}

// fence records that a thread has executed fence.proxy.async.
func (p *proxyState) fence(thread int) {
	if p.on {
		p.clock++
		p.fenced[thread] = p.clock
	}
}

// check looks for an ordinary store that no fence orders before an access through the async proxy.
// fenced is the time of the accessing thread's latest fence. does is the verb of the message:
// "reads" or "overwrites".
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
			return problemf(ProxyRace, "the async proxy %s shared address %#x, which lane %d of warp %d stored, without a fence.proxy.async in between",
				does, i*4, thread%warpLanes, thread/warpLanes)
		}
		p.words[i] = 0
	}
	return nil
}

// latestFence returns the time of the latest proxy fence that any of the lanes has executed.
func (w *warp) latestFence(lanes uint32) uint64 {
	p := &w.cta.shared.proxy
	latest := uint64(0)
	if p.on {
		for l := range lanesIn(lanes) {
			latest = max(latest, p.fenced[w.id*warpLanes+l])
		}
	}
	return latest
}
