package pipeline_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/jit/internal/probe"
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
	"sonicmoe/ptx/emu"
)

// mistakes selects mistakes in a pipeline. Each causes a deadlock.
type mistakes struct {
	neverReleases bool // no consumer releases a stage
	releasesOnce  bool // consumers release a stage after its first chunk, but not after later ones
	leavesEarly   bool // consumer warpgroup 1 ends after three chunks
	expectsMore   bool // the barrier expects more bytes than the copy writes
	fewMeet       bool // not all threads that a named barrier expects arrive
}

// hungKernel returns a kernel with the selected mistakes. A producer warpgroup passes eight chunks
// to two consumer warpgroups through a ring of three stages.
func hungKernel(m mistakes) *ptx.Kernel {
	const stages, consumers, chunks = 3, 2, 8
	k := ptx.NewKernel("k")
	k.SetLaunchBounds((consumers+1)*pipeline.WarpgroupThreads, 1)
	in := k.ParamPtr("in")
	tid := k.TidX()
	cta := pipeline.NewCTA(k)
	meet := cta.NamedBarriers("meet", 1, consumers*pipeline.WarpgroupThreads)
	ring := cta.Ring("ab", stages, chunkBytes, 1, 4*consumers)
	cta.Ready(tid)
	load := func() {
		k.If(tid.EqI(consumers*pipeline.WarpgroupThreads), func() {
			at := ring.Producer()
			k.Range(ptx.Uint(chunks), func(i ptx.U32) {
				s := at.Acquire()
				bytes := chunkBytes
				if m.expectsMore {
					bytes += 16
				}
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(bytes))
				k.BulkLoad(s.Data, in.Index(i, chunkBytes), ptx.Uint(chunkBytes), s.Full)
				at.Advance()
			})
		})
	}
	math := func() {
		at := ring.Consumer()
		warpgroup := tid.ShrI(7)
		if m.fewMeet {
			k.If(warpgroup.EqI(0), func() { meet.Sync(ptx.Uint(0)) })
		}
		last := ptx.Uint(chunks)
		if m.leavesEarly {
			last = ptx.Select(warpgroup.EqI(1), ptx.Uint(3), last)
		}
		k.For(ptx.Uint(0), last, ptx.Uint(1), func(i ptx.U32) {
			s := at.Wait()
			release := tid.AndI(31).EqI(0)
			if m.releasesOnce {
				release = release.And(i.LtI(stages))
			}
			if !m.neverReleases {
				k.Guarded(release, func() { s.Release(k) })
			}
			at.Advance()
		})
	}
	pipeline.Run(k, tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: consumers, Body: math},
		pipeline.Role{Name: "load", First: consumers, Count: 1, Body: load})
	return k
}

// TestDeadlocksAreTold checks the report of a deadlock. It names roles, rings and stages, starts
// with the root cause, and has the Go lines of waiting and missing warps.
func TestDeadlocksAreTold(t *testing.T) {
	const at = `\(line \d+ = [^)]*pipeline/deadlock_test.go:\d+\)`
	for name, c := range map[string]struct {
		mistakes
		says []string // parts of the report's lines, in this order
	}{
		"never released": {mistakes{neverReleases: true}, []string{
			`^  load warp 8 lane 0 ` + at + ` waits at mbarrier empty\[0\] of ring ab .*8 of 8 arrivals and 0 bytes$`,
			`^    no warp is left that could arrive there$`,
			`^  math warps 0-7 ` + at + ` waits at mbarrier full\[0\] of ring ab .*: phase 1 lacks 1 of 1 arrivals`,
			`^    warp 8 should arrive there, as before at line \d+ = pipeline/deadlock_test.go:\d+`,
		}},
		"released once": {mistakes{releasesOnce: true}, []string{
			`^  load warp 8 lane 0 ` + at + ` waits at mbarrier empty\[0\] of ring ab .*8 of 8 arrivals`,
			`^    warps 0-7 should arrive there, as before at line \d+ = [^)]*pipeline/deadlock_test.go:\d+`,
			`^  math warps 0-7 ` + at + ` waits at mbarrier full\[0\] of ring ab`,
		}},
		"one warpgroup leaves": {mistakes{leavesEarly: true}, []string{
			`^  load warp 8 lane 0 ` + at + ` waits at mbarrier empty\[0\] of ring ab .*4 of 8 arrivals`,
			`^    warpgroup 1 \(warps 4-7\), which have exited, should arrive there, as before at line`,
			`^  math warpgroup 0 \(warps 0-3\) ` + at + ` waits at mbarrier full\[0\] of ring ab`,
			`^    warp 8 should arrive there`,
			`^  warps 4-7,9-11 have exited$`,
		}},
		"more bytes expected": {mistakes{expectsMore: true}, []string{
			`^  math warps 0-7 ` + at + ` waits at mbarrier full\[0\] of ring ab .*0 of 1 arrivals and 16 bytes`,
			`^    warp 8 announced \d+ bytes with mbarrier.arrive.expect_tx\S* at line \d+ = [^)]*pipeline/deadlock_test.go:\d+.*, and copies \(line \d+ .*\) brought \d+: announce \d+ bytes, or copy 16 more`,
			`^  load warp 8 lane 0 ` + at + ` waits at mbarrier empty\[0\] of ring ab`,
			`^    warps 0-7 should arrive there at line \d+ = .*, and no warp has yet`,
		}},
		"a named barrier for more": {mistakes{fewMeet: true}, []string{
			`warpgroup 0 \(warps 0-3\) ` + at + ` waits at named barrier 1 \(meet\): 128 of 256 threads have arrived \(warps 0-3\)`,
			`^    other warps of the CTA: `,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := hungKernel(c.mistakes)
			p := probe.New(t, k, 3*pipeline.WarpgroupThreads, k.SharedBytes())
			in := p.Room(8 * chunkWords)
			for _, timing := range probe.Timings() {
				var fault *emu.Fault
				err := p.Try(timing, 1, in)
				require.True(t, errors.As(err, &fault), "%v", err)
				require.Equal(t, emu.Deadlock, fault.Kind, fault.Text)
				lines := strings.Split(fault.Text, "\n")
				assert.LessOrEqual(t, len(lines), 25)
				n := 0
				for _, line := range lines {
					if n < len(c.says) && regexp.MustCompile(c.says[n]).MatchString(line) {
						n++
					}
				}
				require.Equal(t, len(c.says), n, "%s: no line says %q in its place:\n%s", timing.Name, append(c.says, "")[n], fault.Text)
			}
		})
	}
}
