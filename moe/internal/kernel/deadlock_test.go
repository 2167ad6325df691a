package kernel

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/ptx"
)

// TestDeadlocksOfUp checks that the up-projection hangs without one of its
// synchronising instructions. The report then names the ring, the stage and the
// roles of both sides, with the Go lines of the kernel and its kit.
func TestDeadlocksOfUp(t *testing.T) {
	if device := os.Getenv("SONICMOE_DEVICE"); device != "" && device != "emulated" {
		t.Skip("a GPU would hang for ever")
	}
	for name, c := range map[string]struct {
		op, from string // the instructions to leave out, and the function that emits them
		says     []string
	}{
		"math gives no stage back": {"mbarrier.arrive.shared", `gemm/math\.go`, []string{
			`^  load warpgroup 2 .* waits at mbarrier empty\[0\] of ring ab .*: phase 0 lacks 8 of 8 arrivals and 0 bytes$`,
			`^    no warp is left that could arrive there$`,
			`^  math warp.* waits at mbarrier full\[0\] of ring ab .*: phase \d lacks 129 of 129 arrivals`,
			`^    warpgroup 2 \(warps 8-11\) should arrive there, as before at line`,
			`^line \d+ = pipeline/barrier\.go:.* < gemm/math\.go:\d+$`,
			`^line \d+ = gemm/load\.go:\d+$`,
		}},
		"loaded rows are not signalled": {"cp.async.mbarrier.arrive", `gemm/load\.go`, []string{
			`^  math warpgroup 0 .* waits at mbarrier full\[0\] of ring ab .*: phase 0 lacks 128 of 129 arrivals and 0 bytes`,
			`^    warp 8 did, warps 9-11 should arrive there too`,
			`^  load warpgroup 2 .* waits at mbarrier empty\[0\] of ring ab .*: phase 0 lacks 8 of 8 arrivals and 0 bytes$`,
			`^line \d+ = .*gemm/load\.go:\d+$`,
			`^line \d+ = .*gemm/math\.go:\d+$`,
		}},
		"the first warpgroup does not let the second go": {"bar.arrive", `gemm/math\.go`, []string{
			`^  load warpgroup 2 .* waits at mbarrier empty\[0\] of ring ab .*: phase 0 lacks 4 of 8 arrivals and 0 bytes`,
			`^    warpgroup 0 \(warps 0-3\) did, warpgroup 1 \(warps 4-7\) should arrive there too, possibly at line`,
			`^  math warpgroup 1 .* waits at named barrier 3 \(stagger\): 128 of 256 threads have arrived`,
			`^line \d+ = pipeline/cta\.go:\d+ < gemm/math\.go:\d+`,
		}},
		"math leaves the queue full": {"mbarrier.arrive.shared", `schedule/queue\.go:\d+ < schedule/queue\.go:\d+ < schedule/queue\.go:\d+`, []string{
			`^  load warp 8 lane 0 .* waits at mbarrier empty\[0\] of ring queue .*: phase 0 lacks 8 of 12 arrivals and 0 bytes$`,
			`^    warpgroup 2 \(warps 8-11\) did, and no other warp is left that could arrive there$`,
			`^  math warp.* waits at mbarrier full\[\d\] of ring ab`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := Up{Config: spec.Config{Hidden: 320, Intermediate: 128, NumExperts: 4}, SaveH: true, Tiling: kt.Shallow(128)}.Build()
			require.NoError(t, err)
			e, missing := k.Module.Entry(k.Name), regexp.MustCompile(c.from)
			n := len(e.Body)
			e.Body = slices.DeleteFunc(e.Body, func(in ptx.Inst) bool {
				return in.Form != nil && strings.HasPrefix(in.Form.Op, c.op) && missing.MatchString(in.Pos().String())
			})
			require.Less(t, len(e.Body), n, "nothing is missing")
			for _, timing := range kt.Timings() {
				report := hang(t, timing, k)
				lines, found := strings.Split(report, "\n"), 0
				assert.LessOrEqual(t, len(lines), 25)
				for _, line := range lines {
					if found < len(c.says) && regexp.MustCompile(c.says[found]).MatchString(line) {
						found++
					}
				}
				require.Equal(t, len(c.says), found, "%s: no line says %q in its place:\n%s", timing.Name, append(c.says, "")[found], report)
			}
		})
	}
}

// hang runs the kernel on rows of several experts and returns its error.
func hang(t *testing.T, timing kt.Timing, k *jit.Kernel[UpArgs]) string {
	t.Helper()
	err := runUp(t, kt.NewToBreak(t, timing), k)
	var of *driver.Error
	require.True(t, errors.As(err, &of), "%v", err)
	return err.Error()
}

// runUp runs the up-projection on rows of several experts.
func runUp(t *testing.T, b *kt.Bed, k *jit.Kernel[UpArgs]) error {
	t.Helper()
	p := kt.Small()
	const d, n = 320, 128
	fn, err := jit.Of(b.Device).Load(context.Background(), nil, k.Source(t.Name()), gpu.CompileOptions{})
	require.NoError(t, err)
	normal := reference.NewNormal(3, 1)
	args := UpArgs{X: kt.Upload(b, normal.Values(int64(p.Tokens*d))), Gather: kt.Upload(b, p.Gather), W1: kt.Upload(b, normal.Values(int64(len(p.Rows)*2*n*d))),
		A: b.Room(2 * len(p.Expert) * n), H: b.Room(4 * len(p.Expert) * n), Rows: len(p.Expert), TileArgs: p.Tiles(b)}
	err = k.Launcher(fn).LaunchGrid(b.Stream, args, gpu.Dim3{X: 2})
	if err == nil {
		err = fn.Explain(b.Stream.Synchronize(context.Background()))
	}
	return err
}
