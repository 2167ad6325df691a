package emu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/emu/layout"
)

// These tests compare the emulator's results with a GPU's bits. The GPU tests run if
// SONICMOE_DEVICE is cuda.

// onGPU returns a real device, or skips the test.
func onGPU(t *testing.T) gpu.Device {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: not run on a GPU")
	}
	dev, err := cuda.Open(context.Background(), 0, cuda.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// run multiplies tiles on a device and returns the sums. image has A, B and metadata of all tiles,
// sums their initial accumulators.
func (t tileType) run(tb testing.TB, dev gpu.Device, image, sums []byte) []uint32 {
	bed := &bed{tb, dev}
	a, b := bed.put(image), bed.put(t.pack(sums))
	bed.launch([]byte(t.text()), "tile", gpu.Launch{Grid: gpu.Dim3{X: len(sums) / 4 / tileSums}, Block: gpu.Dim3{X: 128}},
		binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(a)), uint64(b)))
	out := bed.get(b, len(sums))
	words := make([]uint32, len(out)/4)
	require.NoError(tb, binary.Read(bytes.NewReader(out), binary.LittleEndian, words))
	return t.unpack(words)
}

// bed runs kernels on a device.
type bed struct {
	t   testing.TB
	dev gpu.Device
}

func (b *bed) stream(use func(driver.Stream) error) {
	s, err := b.dev.NewStream()
	require.NoError(b.t, err)
	require.NoError(b.t, use(s))
	require.NoError(b.t, s.Synchronize(context.Background()))
	require.NoError(b.t, s.Close())
}

func (b *bed) put(bytes []byte) driver.DevicePtr {
	p, err := b.dev.Alloc(int64(max(len(bytes), 1)))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, b.dev.Free(p)) })
	b.stream(func(s driver.Stream) error { return s.CopyToDevice(p, bytes) })
	return p
}

func (b *bed) get(p driver.DevicePtr, n int) []byte {
	out := make([]byte, n)
	b.stream(func(s driver.Stream) error { return s.CopyToHost(out, p) })
	return out
}

func (b *bed) launch(text []byte, entry string, l gpu.Launch, params []byte) {
	image, err := b.dev.Compile(context.Background(), text, gpu.CompileOptions{})
	require.NoError(b.t, err)
	m, err := b.dev.Load(image.Code)
	require.NoError(b.t, err)
	f, err := m.Function(entry)
	require.NoError(b.t, err)
	if l.SharedBytes > 0 {
		require.NoError(b.t, f.AllowSharedBytes(l.SharedBytes))
	}
	b.stream(func(s driver.Stream) error { return gpu.Enqueue(s, f, &l, params) })
	require.NoError(b.t, m.Unload())
}

// model returns the sum that the emulator's definition gives, with A in format f.
func (t tileType) model(acc uint32, a, b []uint32, f *mma.Format) uint32 {
	if t.a.integer() {
		sum := int64(int32(acc))
		for k := range a {
			x, y := int64(a[k]), int64(b[k])
			if t.a.signed8 {
				x = int64(int8(x))
			}
			if t.b.signed8 {
				y = int64(int8(y))
			}
			sum += x * y
		}
		if t.saturates {
			sum = min(max(sum, math.MinInt32), math.MaxInt32)
		}
		return uint32(sum)
	}
	if t.registersB > 0 && emu.HalvesOfFP8[t.a.format] != nil {
		return t.modelOfFP8(acc, a, b)
	}
	sign := uint32(0)
	if strings.Contains(t.ends, "-1") { // the instruction negates one operand, A or B
		sign = 1 << (t.a.exponent + t.a.fraction)
	}
	x, y := make([]uint32, f.Depth()), make([]uint32, f.Depth())
	for k := range a {
		x[k], y[k] = a[k]^sign, b[k]
	}
	return t.sum(acc, x, y, f, emu.ElementFormats[t.b.format])
}

// sum adds the products of a and b to acc, as internal/mma defines it.
func (t tileType) sum(acc uint32, a, b []uint32, ofA, ofB *mma.Format) uint32 {
	if t.halves {
		return arith.F16Nearest(mma.DotOf(arith.F32FromF16(uint16(acc)), a, b, ofA.InHalves(), ofB))
	}
	return mma.DotOf(acc, a, b, ofA, ofB)
}

// modelOfFP8 returns the sum of an mma.sync with FP8 elements.
func (t tileType) modelOfFP8(acc uint32, a, b []uint32) uint32 {
	sum := uint32(0)
	for step := 0; step < 4; step += 2 {
		var x, y [16]uint32
		for k := range len(a) / 2 {
			x[k], y[k] = a[k/2*4+step+k%2], b[k/2*4+step+k%2]
		}
		sum = t.sum(sum, x[:], y[:], emu.HalvesOfFP8[t.a.format], emu.HalvesOfFP8[t.b.format])
	}
	if t.halves {
		return emu.AddF16(sum, acc)
	}
	return arith.AddF32(sum, acc, false)
}

// each calls visit for each sum of a tile, with its index, its row and column, and its operands.
func (t tileType) each(image []byte, visit func(i, row, column int, a, b []uint32)) {
	for i := range tileSums {
		row, column := layout.AccumulatorPosition(i%128, i/128)
		a, b := t.operands(image, row, column)
		visit(i, row, column, a, b)
	}
}

// TestTiles checks the sums of tiles of every type against the definition (tileType.model).
func TestTiles(t *testing.T) {
	tiles := 2 * len(tileDraws)
	if testing.Short() {
		tiles = len(tileDraws)
	}
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	for _, ty := range tileTypes {
		t.Run(ty.name, func(t *testing.T) {
			image, sums := ty.inputs(tiles)
			got := ty.run(t, dev, image, sums)
			for tile := range tiles {
				ty.each(image[tile*tileBytes:], func(i, row, column int, a, b []uint32) {
					at := tile*tileSums + i
					want := ty.model(binary.LittleEndian.Uint32(sums[4*at:]), a, b, emu.ElementFormats[ty.a.format])
					if got[at] != want { // a comparison is faster than a call of testify for each sum
						require.Equal(t, want, got[at], "%s tile %d, row %d, column %d", tileKind(tile), tile, row, column)
					}
				})
			}
		})
	}
}

// TestSumsInFP16 checks FP16 sums against the behaviour of an H200: the exact sum is rounded once,
// without an earlier cut; a result that rounds to zero is +0; and a subnormal sum has the exponent
// of the smallest normal number.
func TestSumsInFP16(t *testing.T) {
	ofF16, ofE4M3, ofE5M2 := inHalves(wgmmaOf(f16, f16, false, "")), inHalves(wgmmaOf(e4m3, e4m3, false, "")), inHalves(wgmmaOf(e5m2, e5m2, true, ""))
	for _, c := range []struct {
		of        tileType
		chip, sum uint32
		a, b      string
	}{
		{ofF16, 0x417b, 0xbe00, "3e00 3c00 3c00 be00 a600 3c00 8c00 2600 be00 8c00 a600 0c00 3c00 3c00 be00 3e00", "0c00 bc00 0e00 bc00 be00 0c00 8e00 2400 be00 3e00 bc00 8c00 a600 a600 bc00 a400"},
		{ofF16, 0, 0, "8140 8457 0820 07df 03b0 0394 84ec 0df5 0092 0335 8bd1 0104 12ad 05a2 114f 8efd", "8a36 8543 81fe 0187 0d6a 8324 8279 8181 01d3 83d5 0002 8969 83ef 0bc2 0083 808c"},
		{ofE4M3, 0xf527, 0, "70 df 3d f3 da a6 96 40 b5 c7 12 d4 a7 5a c2 28 9d ef 98 f1 9c 39 9b de ac dd e6 c3 ca f4 4b 36",
			"cf 92 31 96 3a e4 b5 54 95 e8 09 e7 40 8b df b1 2b e1 dd 51 8d a2 ce ac 7c a0 6d 42 bb 6c c0 75"},
		{ofE5M2, 0x838e, 0x8392, "0d 08 91 8c 80 84 80 83 08 12 00 08 05 8a 02 03 91 07 83 81 8a 83 89 87 02 01 81 0c 02 0e 00 0c",
			"0d 83 01 01 11 81 80 08 80 02 06 09 03 01 0e 00 86 80 93 82 03 8d 89 0b 0c 03 04 0b 86 82 8a 00"},
	} {
		words := func(text string) (list []uint32) {
			for _, word := range strings.Fields(text) {
				x, err := strconv.ParseUint(word, 16, 32)
				require.NoError(t, err)
				list = append(list, uint32(x))
			}
			return list
		}
		got := c.of.model(c.sum, words(c.a), words(c.b), emu.ElementFormats[c.of.a.format])
		assert.Equal(t, c.chip, got, "%s of %s by %s", c.of.name, c.a, c.b)
	}
}

// TestTilesOnGPU checks that a GPU and the emulator give bit-identical sums. It draws 10,000 tiles
// of each type if SONICMOE_LONG is set, else 400. It counts differences by distribution, and prints
// a few sums with the chip's bits, the emulator's bits, the accumulator, and A and B in the order
// of k.
func TestTilesOnGPU(t *testing.T) {
	chip := onGPU(t)
	tiles := 400
	if os.Getenv("SONICMOE_LONG") != "" {
		tiles = 10000
	}
	for _, ty := range tileTypes {
		t.Run(ty.name, func(t *testing.T) {
			t.Parallel()
			emulator, err := emulated.New(emulated.Options{})
			require.NoError(t, err)
			image, sums := ty.inputs(tiles)
			got, want := ty.run(t, chip, image, sums), ty.run(t, emulator, image, sums)
			different := map[string]int{}
			var lines []string
			f := ty.fits()
			for tile := range tiles {
				from := tile * tileSums
				if slices.Equal(got[from:from+tileSums], want[from:from+tileSums]) && tile >= 4*len(tileDraws) {
					continue
				}
				kind := tileKind(tile)
				ty.each(image[tile*tileBytes:], func(i, row, column int, a, b []uint32) {
					acc := binary.LittleEndian.Uint32(sums[4*(from+i):])
					if tile < 4*len(tileDraws) {
						f.count(acc, a, b, got[from+i])
					}
					if got[from+i] == want[from+i] {
						return
					}
					if different[kind]++; different[kind] <= 3 {
						lines = append(lines, fmt.Sprintf("%s: chip %08x emulator %08x sum %08x A %s B %s", kind, got[from+i], want[from+i], acc,
							ty.a.hex(a), ty.b.hex(b)))
					}
				})
			}
			if len(different) > 0 {
				t.Errorf("of %d sums of %d tiles differ, by kind: %v\n%s\n%s", len(got), tiles, different, strings.Join(lines, "\n"), f)
			}
		})
	}
}

func (b bits) hex(list []uint32) string {
	var s []string
	for _, x := range list {
		s = append(s, fmt.Sprintf("%0*x", 2*b.bytes(), x))
	}
	return strings.Join(s, " ")
}

// inexact matches instructions whose result a chip may compute with another rounding, or fuse with
// a following instruction.
var inexact = regexp.MustCompile(`\.approx|\.full|\b(add|sub|mul)\.(ftz\.)?f(16|32|64)`)

// halves matches kernels that add, subtract or multiply FP16 numbers. A chip may round these
// operations differently, or fuse them.
var halves = regexp.MustCompile(`\b(add|sub|mul)\.f16`)

// near reports whether two words hold the same FP32 number, or the same pair of FP16 numbers, up to
// about one rounding.
func near(x, y uint32, pair bool) bool {
	if !pair {
		u, v := float64(math.Float32frombits(x)), float64(math.Float32frombits(y))
		return math.Abs(u-v) <= 1e-4*math.Max(math.Abs(u), 1e-2)
	}
	half := func(bits uint32) float64 { // half returns the value of an FP16 number; subnormal numbers need only be near 0
		v := math.Ldexp(float64(1<<10|bits&(1<<10-1)), int(bits>>10&31)-25)
		if bits>>15&1 != 0 {
			return -v
		}
		return v
	}
	for shift := 0; shift < 32; shift += 16 {
		u, v := half(x>>shift), half(y>>shift)
		if !(math.Abs(u-v) <= 0x1p-9*math.Max(math.Abs(u), 1)) {
			return false
		}
	}
	return true
}

var versionLine = regexp.MustCompile(`(?m)^\.version \d+\.\d+`)

// TestForeignOnGPU checks that kernels from other compilers leave the same bytes in a GPU's memory
// as in the emulator's.
func TestForeignOnGPU(t *testing.T) {
	chip := onGPU(t)
	launches, same, kernels := 0, 0, map[string]bool{}
	emu.OnForeign = func(t testing.TB, l emu.ForeignLaunch) {
		b := &bed{t, chip}
		params := append([]byte(nil), l.Launch.Params...)
		at := map[uint64]driver.DevicePtr{}
		for i := 0; i+8 <= len(params); i += 8 {
			x := binary.LittleEndian.Uint64(params[i:])
			for base, bytes := range l.Before {
				if x >= base && x-base < uint64(len(bytes)) {
					if at[base] == 0 {
						at[base] = b.put(bytes)
					}
					binary.LittleEndian.PutUint64(params[i:], uint64(at[base])+x-base)
				}
			}
		}
		text := l.Text
		if most := chip.MaxPTXVersion(); most != 0 && most < l.Version { // the driver is older than the text's version, but knows every instruction of the kernel
			text = versionLine.ReplaceAll(text, fmt.Appendf(nil, ".version %d.%d", most/10, most%10))
		}
		dim := func(d [3]int) gpu.Dim3 { return gpu.Dim3{X: d[0], Y: d[1], Z: d[2]} }
		b.launch(text, l.Kernel.Name(), gpu.Launch{Grid: dim(l.Launch.Grid), Block: dim(l.Launch.Block), Cluster: dim(l.Launch.Cluster),
			SharedBytes: l.Launch.SharedBytes}, params)
		words, differ, far := 0, 0, 0
		for base, p := range at {
			want := l.After[base]
			got := b.get(p, len(want))
			for i := 0; i+4 <= len(want); i += 4 {
				x, y := binary.LittleEndian.Uint32(got[i:]), binary.LittleEndian.Uint32(want[i:])
				if words++; x == y {
					continue
				}
				differ++
				if !inexact.Match(l.Text) || !near(x, y, halves.Match(l.Text)) {
					if far++; far <= 3 {
						t.Errorf("word %d of the buffer at %#x: chip %08x, emulator %08x", i/4, base, x, y)
					}
				}
			}
		}
		launches++
		if differ == 0 {
			same++
		}
		kernels[l.Kernel.Name()] = true
		t.Logf("%s: %d of %d words differ from the chip's, %d by more than approximation and fusing may", t.Name(), differ, words, far)
	}
	defer func() { emu.OnForeign = nil }()
	emu.RunForeign(t)
	t.Logf("%d launches of %d kernels on %s: %d leave the same bits", launches, len(kernels), chip.Target().Name, same)
	assert.GreaterOrEqual(t, len(kernels), 20)
}
