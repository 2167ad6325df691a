package emu

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCheck checks that Check finds a fault that occurs in one order only, that the finding names
// this order, and that the memory then holds the result of the first run.
func TestCheck(t *testing.T) {
	// Under Late, the copies of one warp are not complete when another warp stores what it read
	// from their destination. The word at out counts the runs.
	text := body(warps + `
	@!%p0 bra rest;
	ld.global.u32 %r4, [%d0];
	add.u32 %r4, %r4, 1;
	bar.warp.sync -1;
	@%p1 st.global.u32 [%d0], %r4;
	bar.warp.sync -1;
	cp.async.cg.shared.global [%r0], [%d0], 16;
	cp.async.commit_group;
	cp.async.wait_group 0;
rest:
	bar.sync 0;
	ld.shared.u32 %r6, [%r0];
`)
	p := assemble(t, text, "k")
	out := p.u32s(make([]uint32, 16)...)
	p.params(out, 0)
	p.launch.Block, p.launch.SharedBytes = [3]int{64}, 1024
	// The 32 lanes of one warp copy to the same destination.
	require.NoError(t, p.kernel.Check(context.Background(), p.mem, p.launch, 3))
	require.Equal(t, uint32(1), p.read(out, 1)[0])

	bad := assemble(t, body(warps+`
	cp.async.cg.shared.global [%r0], [%d0], 16;
	ld.shared.u32 %r6, [%r0];
	trap;`), "k")
	bad.mem, bad.launch = p.mem, p.launch
	bad.launch.Seed = 10
	err := bad.kernel.Check(context.Background(), p.mem, bad.launch, 3)
	var found *Findings
	require.True(t, errors.As(err, &found), "%v", err)
	require.Equal(t, 5, found.Runs)
	for _, x := range found.List {
		require.Equal(t, Race, x.Kind)
		again := bad.launch
		again.Timing, again.Seed, again.Races = x.Timing, x.Seed, true
		var f *Fault
		require.True(t, errors.As(bad.kernel.Launch(context.Background(), p.mem, again), &f))
		require.Equal(t, *x.Fault, *f, "replayed")
	}
	var f *Fault
	require.True(t, errors.As(err, &f))
	require.ErrorContains(t, err, "in 5 runs")
	require.ErrorContains(t, err, "timing early")
	require.Equal(t, uint32(1), p.read(out, 1)[0])
}

// TestDeadline checks that a launch ends within a second after its context is done, whether the
// kernel polls memory or not.
func TestDeadline(t *testing.T) {
	for name, code := range map[string]string{
		"computes": "mov.u32 %r0, 0; spin: add.u32 %r0, %r0, 2; bra spin;",
		"polls":    "ld.param.u64 %d0, [out]; mov.u32 %r1, 0; spin: ld.relaxed.gpu.global.u32 %r0, [%d0]; add.u32 %r1, %r1, 1; bra spin;",
		"stores":   "ld.param.u64 %d0, [out]; spin: st.global.u32 [%d0], 1; bra spin;",
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, body(code), "k")
			p.params(p.u32s(0), 0)
			p.launch.Block, p.launch.SpinLimit = [3]int{1}, 1<<30
			for kind, launch := range map[string]func(ctx context.Context) error{
				"launch":  func(ctx context.Context) error { return p.kernel.Launch(ctx, p.mem, p.launch) },
				"check":   func(ctx context.Context) error { return p.kernel.Check(ctx, p.mem, p.launch, 2) },
				"explore": func(ctx context.Context) error { _, err := p.kernel.Explore(ctx, p.mem, p.launch, 2); return err },
			} {
				const limit = 50 * time.Millisecond
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				start := time.Now()
				require.ErrorIs(t, launch(ctx), context.DeadlineExceeded, kind)
				require.Less(t, time.Since(start), limit+time.Second, kind)
				cancel()
			}
		})
	}
}

// TestFindingsInWords checks that the error text uses singular and plural correctly: "1 finding",
// "2 findings".
func TestFindingsInWords(t *testing.T) {
	one := Finding{Fault: &Fault{Kind: Race}, Runs: 1}
	require.Regexp(t, "^1 finding in 5 runs\n", (&Findings{List: []Finding{one}, Runs: 5}).Error())
	require.Regexp(t, `^1 finding in 1 run\n.* \(1 of 1 run, `, (&Findings{List: []Finding{one}, Runs: 1}).Error())
	require.Regexp(t, "^2 findings in 5 runs\n", (&Findings{List: []Finding{one, one}, Runs: 5}).Error())
}

// TestCheckGoesOn checks that a run goes on after notes and after the findings that GoOn accepts,
// and that the list has all of them.
func TestCheckGoesOn(t *testing.T) {
	const made = `
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	mbarrier.init.shared::cta.b64 [%r0+1024], 1;
	fence.mbarrier_init.release.cluster;
	setp.ne.u32 %p0, %r1, 0;
	ld.param.u64 %d0, [out];
	@%p0 bra end;
	st.shared.v4.u32 [%r0], {%r1, %r1, %r1, %r1};
	fence.proxy.async.shared::cta;
	cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 16;
	cp.async.bulk.commit_group;
end:`
	const races = `
	shl.b32 %r2, %r1, 2;
	xor.b32 %r3, %r2, 4;
	add.u32 %r2, %r2, %r0;
	add.u32 %r3, %r3, %r0;
	st.shared.u32 [%r2+128], %r1;
	ld.shared.u32 %r4, [%r3+128];
	st.shared.u32 [%r3+512], %r1;
	ld.shared.u32 %r4, [%r2+512];
	ret;`
	for _, c := range []struct {
		name, code string
		goOn       func(*Fault) bool
		kinds      []FaultKind
		worst      Severity
	}{
		{"notes", made + "\n\tret;", nil, []FaultKind{BarrierMisuse, AsyncPending}, Note},
		{"an end at the first note", made + "\n\tret;", never, []FaultKind{BarrierMisuse}, Note},
		{"the first race ends the run", made + races, nil, []FaultKind{BarrierMisuse, Race}, Error},
		{"all races", made + races, func(*Fault) bool { return true }, []FaultKind{BarrierMisuse, Race, Race, AsyncPending}, Error},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := assemble(t, body(c.code), "k")
			p.params(p.u32s(make([]uint32, 64)...), 0)
			p.launch.SharedBytes, p.launch.GoOn = 4096, c.goOn
			err := p.kernel.Check(t.Context(), p.mem, p.launch, 1)
			var found *Findings
			require.ErrorAs(t, err, &found)
			var kinds []FaultKind
			for _, x := range found.List {
				kinds = append(kinds, x.Kind)
				assert.LessOrEqual(t, x.Severity, found.List[0].Severity)
			}
			assert.Equal(t, c.kinds, kinds, err)
			assert.Equal(t, c.worst, found.Severity())
			p.launch.Races = true
			_, explored := p.kernel.Explore(t.Context(), p.mem, p.launch, 2)
			for _, err := range []error{explored, p.kernel.Once(t.Context(), p.mem, p.launch)} {
				var again *Findings
				require.ErrorAs(t, err, &again)
				require.Len(t, again.List, len(c.kinds))
				for i, x := range again.List {
					assert.Equal(t, c.kinds[i], x.Kind)
					assert.LessOrEqual(t, x.Runs, again.Runs)
				}
			}
			if c.goOn == nil && c.worst == Note {
				require.NoError(t, p.kernel.Launch(t.Context(), p.mem, p.launch))
			}
		})
	}
}
