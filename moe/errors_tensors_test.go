package moe_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// argBench runs wrong calls and checks that they have no effect on the device and its memory.
type argBench struct {
	*testing.T
	dev   *faulty.Device
	trial *trial.Trial
	want  [32]byte
}

func newArgBench(t *testing.T) argBench {
	dev, tr := faultyTrial(t, testDevice(t), moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2}, 24, moe.WithoutBackward())
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	b := argBench{T: t, dev: dev, trial: tr}
	var err error
	b.want, err = digest(limited(t, time.Minute), tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	dev.ResetCounts()
	return b
}

// pass is one kind of call, with arguments from a ForwardArgs.
type pass struct {
	name string
	// fields lists the arguments that the call uses; written lists its outputs.
	fields, written string
	run             func(c *moe.Call, s driver.Stream, f moe.ForwardArgs) error
}

var passes = []pass{
	{"Forward", "X Router W1 W2 O H Scores ExpertIDs Workspace", "O H Scores ExpertIDs Workspace",
		func(c *moe.Call, s driver.Stream, f moe.ForwardArgs) error { return c.Forward(s, f) }},
	{"Route", "X Router Scores ExpertIDs Workspace", "Scores ExpertIDs Workspace",
		func(c *moe.Call, s driver.Stream, f moe.ForwardArgs) error { return c.Route(s, f) }},
	{"ExpertIDs", "X W1 W2 O H Scores ExpertIDs Workspace", "O H Workspace",
		func(c *moe.Call, s driver.Stream, f moe.ForwardArgs) error { return c.ForwardExperts(s, f) }},
}

func (p pass) writes(field string) bool {
	for w := range strings.FieldsSeq(p.written) {
		if w == field {
			return true
		}
	}
	return false
}

// refused runs a wrong call and checks its error: the field, the wrong value, and the required
// value.
func (b argBench) refused(p pass, f moe.ForwardArgs, field, got, want string) {
	b.Helper()
	err := p.run(b.trial.Call(), b.trial.Stream(), f)
	var arg *moe.ArgError
	require.ErrorAs(b, err, &arg)
	assert.Equal(b, field, arg.Field, arg)
	assert.Contains(b, arg.Got, got, arg)
	assert.Contains(b, arg.Want, want, arg)
	assert.Equal(b, fmt.Sprintf("%s is %s, must be %s", arg.Field, arg.Got, arg.Want), err.Error())
}

// nothingHappened checks that wrong calls have neither reached the device nor changed an output,
// and that the call still works.
func (b argBench) nothingHappened() {
	b.Helper()
	assert.Zero(b, b.dev.Count(faulty.Any), "a wrong call must not reach the device")
	r, err := b.trial.Results(true)
	require.NoError(b, err)
	before := r
	ctx := limited(b, time.Minute)
	got, err := digest(ctx, b.trial, b.trial.Stream(), b.trial.Args)
	require.NoError(b, err)
	assert.Equal(b, b.want, got, "bits after wrong calls")
	r, err = b.trial.Results(true)
	require.NoError(b, err)
	assert.Equal(b, r, before, "outputs must be as the last right call left them")
}

// tensorOf returns a tensor of f by name, nil for the workspace.
func tensorOf(f *moe.ForwardArgs, field string) *moe.Tensor {
	return map[string]*moe.Tensor{"X": &f.X, "Router": &f.Router, "W1": &f.W1, "W2": &f.W2,
		"O": &f.O, "H": &f.H, "Scores": &f.Scores, "ExpertIDs": &f.ExpertIDs}[field]
}

// TestWrongTensors makes every tensor of every pass wrong, in each way of spoils.
func TestWrongTensors(t *testing.T) {
	b := newArgBench(t)
	spoils := []struct {
		name, ptr string // name says what is wrong; ptr is added to the name of the field in the error
		spoil     func(x *moe.Tensor)
		got, want string // "%" is replaced by the right shape
	}{
		{"rank 0", "", func(x *moe.Tensor) { x.Shape.Rank = 0 }, "[]", "%"},
		{"one less rank", "", func(x *moe.Tensor) { x.Shape.Rank--; x.Shape.Dims[x.Shape.Rank] = 0 }, "[", "%"},
		{"rank 4", "", func(x *moe.Tensor) { *x = moe.TensorAt(x.Ptr, moe.BF16, 1, 2, 3, 4) }, "bf16 [1 2 3] of rank 4", "%"},
		{"negative rank", "", func(x *moe.Tensor) { x.Shape.Rank = -1 }, "of rank -1", "%"},
		{"last dimension", "", func(x *moe.Tensor) { x.Shape.Dims[x.Shape.Rank-1]++ }, "[", "%"},
		{"negative dimension", "", func(x *moe.Tensor) { x.Shape.Dims[0] = -5 }, "[-5 ", "%"},
		{"huge dimension", "", func(x *moe.Tensor) { x.Shape.Dims[0] = 1 << 62 }, "[4611686018427387904 ", "%"},
		{"type", "", func(x *moe.Tensor) { x.Shape.Type ^= 1 }, " [", "%"},
		{"unknown type", "", func(x *moe.Tensor) { x.Shape.Type = 77 }, "Type(77) [", "%"},
		{"no shape", "", func(x *moe.Tensor) { *x = moe.Tensor{Ptr: x.Ptr} }, "bf16 []", "%"},
		{"nil", ".Ptr", func(x *moe.Tensor) { x.Ptr = 0 }, "0", "the address of"},
		{"misaligned by 2", ".Ptr", func(x *moe.Tensor) { x.Ptr += 2 }, "0x", "a multiple of 16"},
		{"misaligned by 8", ".Ptr", func(x *moe.Tensor) { x.Ptr += 8 }, "0x", "a multiple of 16"},
		{"past the end of addresses", ".Ptr", func(x *moe.Tensor) { x.Ptr = 1<<64 - 32 }, "0xffffffffffffffe0", "below 2^57"},
	}
	for _, p := range passes {
		for field := range strings.FieldsSeq(p.fields) {
			if field == "Workspace" {
				continue
			}
			for _, s := range spoils {
				f := b.trial.Args
				x := tensorOf(&f, field)
				right := x.Shape.String()
				s.spoil(x)
				want := strings.ReplaceAll(s.want, "%", right)
				if field == "X" && s.ptr == "" {
					want = "bf16 [" // T comes from X itself, so the error has no required T
				}
				b.refused(p, f, field+s.ptr, s.got, want)
			}
		}
	}
	b.nothingHappened()
}

// TestTooManyTokens checks that the number of tokens determines every other shape, and that the
// error for a number that is too large names X.
func TestTooManyTokens(t *testing.T) {
	b := newArgBench(t)
	k := int64(b.trial.Layer.Config().TopK)
	for _, tokens := range []int64{1 << 31 / k, 1<<31/k + 1, 1 << 31, 1 << 62, 1<<63 - 1, -1, -1 << 63} {
		for _, p := range passes {
			f := b.trial.Args
			f.X.Shape.Dims[0] = tokens
			b.refused(p, f, "X", fmt.Sprintf("bf16 [%d 128]", tokens), "bf16 [T 128] with T·K below 2^31")
		}
	}
	// The largest number is valid, so the error is from a later check.
	f := b.trial.Args
	f.X.Shape.Dims[0] = 1<<31/k - 1
	b.refused(passes[0], f, "Scores", "f32 [24 2]", "f32 [1073741823 2]")
	b.nothingHappened()
}

func TestWrongWorkspace(t *testing.T) {
	b := newArgBench(t)
	need := sizesOf(t, b.trial.Layer, b.trial.Tokens).Workspace
	for _, p := range passes {
		for _, c := range []struct {
			spoil            func(w *moe.Buffer)
			field, got, want string
		}{
			{func(w *moe.Buffer) { w.Bytes-- }, "Workspace", fmt.Sprintf("%d bytes", need-1), fmt.Sprintf("at least %d bytes", need)},
			{func(w *moe.Buffer) { *w = moe.Buffer{} }, "Workspace", "0 bytes", fmt.Sprintf("at least %d bytes", need)},
			{func(w *moe.Buffer) { w.Bytes = -1 }, "Workspace", "-1 bytes", fmt.Sprintf("at least %d bytes", need)},
			{func(w *moe.Buffer) { w.Ptr = 0 }, "Workspace.Ptr", "0", fmt.Sprintf("the address of %d bytes", need)},
			{func(w *moe.Buffer) { w.Ptr += 128 }, "Workspace.Ptr", "0x", "a multiple of 256"},
			{func(w *moe.Buffer) { w.Ptr += 16 }, "Workspace.Ptr", "0x", "a multiple of 256"},
			{func(w *moe.Buffer) { w.Ptr = 1<<64 - 256 }, "Workspace.Ptr", "0xffffffffffffff00", "below 2^57"},
		} {
			f := b.trial.Args
			c.spoil(&f.Workspace)
			b.refused(p, f, c.field, c.got, c.want)
		}
	}
	b.nothingHappened()
}

// addressOf returns a pointer to the address of an argument of f.
func addressOf(f *moe.ForwardArgs, field string) *driver.DevicePtr {
	if x := tensorOf(f, field); x != nil {
		return &x.Ptr
	}
	return &f.Workspace.Ptr
}

// TestOverlaps checks that a pass refuses two arguments that share bytes if it writes one of them,
// and accepts them otherwise.
func TestOverlaps(t *testing.T) {
	b := newArgBench(t)
	b.dev.Discard(true) // the addresses below are not allocated
	f := b.trial.Args
	bytes, apart := map[string]int64{"Workspace": sizesOf(t, b.trial.Layer, b.trial.Tokens).Workspace}, map[string]driver.DevicePtr{}
	for i, field := range strings.Fields(passes[0].fields) {
		apart[field] = driver.DevicePtr(1<<40 + i<<32)
		*addressOf(&f, field) = apart[field]
		if x := tensorOf(&f, field); x != nil {
			bytes[field] = x.Shape.Bytes()
		}
	}
	for _, p := range passes {
		for one := range strings.FieldsSeq(p.fields) {
			for two := range strings.FieldsSeq(p.fields) {
				if one == two {
					continue
				}
				end := driver.DevicePtr(bytes[one]+255) &^ 255
				for shift, apart := range map[driver.DevicePtr]bool{0: false, end - 256: false, end: true} {
					f := f
					*addressOf(&f, two) = *addressOf(&f, one) + shift
					err := p.run(b.trial.Call(), b.trial.Stream(), f)
					if apart || !p.writes(one) && !p.writes(two) {
						require.NoError(t, err, "%s: %s at %s + %d", p.name, two, one, shift)
						continue
					}
					var arg *moe.ArgError
					require.ErrorAs(t, err, &arg, "%s: %s at %s + %d", p.name, two, one, shift)
					other := map[string]string{one: two, two: one}[arg.Field]
					require.NotEmpty(t, other, "%v must name one of %s and %s", arg, one, two)
					assert.Equal(t, fmt.Sprintf("%#x with %d bytes", uint64(*addressOf(&f, arg.Field)), bytes[arg.Field]), arg.Got)
					assert.Equal(t, fmt.Sprintf("apart from %s, which is %#x with %d bytes", other, uint64(*addressOf(&f, other)), bytes[other]), arg.Want)
				}
			}
		}
	}
	b.dev.Discard(false)
	b.dev.ResetCounts()
	b.nothingHappened()
}

func TestNilStream(t *testing.T) {
	b := newArgBench(t)
	for _, p := range passes {
		err := p.run(b.trial.Call(), nil, b.trial.Args)
		var arg *moe.ArgError
		require.ErrorAs(t, err, &arg, p.name)
		assert.Equal(t, moe.ArgError{Field: "stream", Got: "nil", Want: "a stream of the layer's device"}, *arg)
	}
	b.nothingHappened()
}

// TestForeignStream checks that a stream refuses a call of another device.
func TestForeignStream(t *testing.T) {
	if onGPU() {
		t.Skip("needs a second device")
	}
	b := newArgBench(t)
	s, err := breakable(t).NewStream()
	require.NoError(t, err)
	for _, p := range passes {
		require.ErrorIs(t, p.run(b.trial.Call(), s, b.trial.Args), driver.ErrInvalid, p.name)
	}
	b.nothingHappened()
}
