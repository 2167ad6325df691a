package moe_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// TestWithGradients checks that a layer has only the kernels of the named gradient modes, that
// these kernels give the bits of a layer with all modes, and that Backward refuses other modes
// before it queues anything.
func TestWithGradients(t *testing.T) {
	c := tiny
	c.SharedExperts = 1
	dev := testDevice(t)
	with := func(opts ...moe.Option) *trial.Trial {
		tr, err := trial.New(dev, newLayerInModes(t, dev, c, opts...), 40, 1, 6)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	all, one := with(), with(moe.WithGradients(moe.F32, false))
	weights := func(l *moe.Layer) (names []string) {
		for _, name := range l.Kernels() {
			if strings.Contains(name, "dw1") || strings.Contains(name, "dw2") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	require.Len(t, weights(all.Layer), 16)
	require.Equal(t, []string{"dw1-f32", "dw2-f32", "shared-dw1-f32", "shared-dw2-f32"}, weights(one.Layer))

	withBackward(t, all, moe.F32)
	withBackward(t, one, moe.F32)
	require.NoError(t, all.RunBackward(testContext(t), all.Back))
	require.NoError(t, one.RunBackward(testContext(t), one.Back))
	require.Equal(t, gradients(t, all, all.Back), gradients(t, one, one.Back))

	for _, tt := range []struct {
		field  string
		change func(b *moe.BackwardArgs)
	}{
		{"DW1", func(b *moe.BackwardArgs) { b.DW1.Accumulate = true }},
		{"DW2", func(b *moe.BackwardArgs) { b.DW2.Shape.Type = moe.BF16 }},
		{"DSharedW1", func(b *moe.BackwardArgs) { b.DSharedW1.Accumulate, b.DSharedW3.Accumulate = true, true }},
		{"DSharedW2", func(b *moe.BackwardArgs) { b.DSharedW2.Shape.Type, b.DSharedW2.Accumulate = moe.BF16, true }},
	} {
		b := one.Back
		tt.change(&b)
		n, err := launches(t, one.Stream(), func() error { return one.Call().Backward(one.Stream(), b) })
		wantArgError(t, err, tt.field)
		require.ErrorContains(t, err, "must be f32, as WithGradients names")
		require.Zero(t, n)
	}
	b := one.Back
	b.DRouter.Accumulate = true
	require.NoError(t, one.RunBackward(testContext(t), b), "gradients of the router may be written in any way")

	_, err := moe.New(t.Context(), dev, c, moe.WithGradients(moe.F16, false))
	wantArgError(t, err, "WithGradients")
	_, err = tools.Sources(driver.H200(), c, moe.WithGradients(moe.F16, true))
	wantArgError(t, err, "WithGradients")
}

// TestWithGradientsTwice checks that a layer has the modes of all its WithGradients options.
func TestWithGradientsTwice(t *testing.T) {
	sources, err := tools.Sources(driver.H200(), tiny, moe.WithGradients(moe.BF16, true), moe.WithGradients(moe.F32, true))
	require.NoError(t, err)
	var names []string
	for _, s := range sources {
		if strings.HasPrefix(s.Name, "moe_dw1") {
			names = append(names, s.Name)
		}
	}
	require.ElementsMatch(t, []string{"moe_dw1_add", "moe_dw1_add_f32"}, names)
}

// TestWithoutBackward checks that a layer without backward has fewer kernels and the same O, and
// that the error of Backward names the option.
func TestWithoutBackward(t *testing.T) {
	with, without := trialOn(t, testDevice(t), tiny, 70), trialOn(t, testDevice(t), tiny, 70, moe.WithoutBackward())
	require.Equal(t, forward(t, with, with.Args), forward(t, without, without.Args))
	require.Less(t, len(without.Layer.Kernels()), len(with.Layer.Kernels()))
	require.Len(t, without.Layer.LoadedFrom(), len(without.Layer.Kernels()))
	require.NoError(t, without.PrepareBackward(17, moe.BF16))
	err := without.Call().Backward(without.Stream(), without.Back)
	wantArgError(t, err, "Layer")
	require.ErrorContains(t, err, "WithoutBackward")
	for _, name := range with.Layer.Kernels() {
		_, err := with.Layer.Listing(name)
		require.NoError(t, err)
	}
	plan, err := with.Layer.Listing("plan-splits")
	require.NoError(t, err)
	byEntry, err := with.Layer.Listing("moe_dwplan")
	require.NoError(t, err)
	require.Equal(t, plan, byEntry)
}
