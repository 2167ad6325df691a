package registry_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/ptx"
)

// TestFromIsAll checks that each kernel's From keeps everything on which its text depends. It
// compares the text with the text from the whole Config.
func TestFromIsAll(t *testing.T) {
	plain := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 16, TopK: 4}
	grouped := plain
	grouped.TopK, grouped.Logits, grouped.RouterBias, grouped.Score, grouped.SelectionBias = 3, spec.F32, true, spec.Sigmoid, true
	grouped.Groups, grouped.TopGroups, grouped.Renormalize, grouped.ScoreScale = 4, 2, spec.RenormSum, 2.5
	grouped.SharedExperts, grouped.SharedGate, grouped.Lists, grouped.TokensHint = 1, true, true, 77
	onInput := plain
	onInput.ScoreOnInput, onInput.Bias, onInput.RouterF32, onInput.Logits = true, true, true, spec.F32
	target, shared := driver.H200(), 0
	choice := kernel.Kernels.Choose(tiles.H200, plain, target)
	for _, k := range kernel.Kernels {
		of := map[string]registry.Built{}
		for name, c := range map[string]spec.Config{"plain": plain, "grouped": grouped, "on input": onInput} {
			if !k.Suits(c) {
				continue
			}
			l := registry.Layer{Config: c, Tiles: choice}
			built, err := k.Build(l)
			require.NoError(t, err)
			of[name] = built
			out := reflect.ValueOf(k).Elem().FieldByName("Emit").Call([]reflect.Value{reflect.ValueOf(l)})
			require.Nil(t, out[1].Interface())
			whole := out[0].Elem().FieldByName("Module").Interface().(*ptx.Module)
			require.Equal(t, string(whole.Print().PTX), string(built.Source("").Module.Print().PTX), "%s of a layer that is %s", k.Name(), name)
		}
		if of["plain"] != nil && of["plain"] == of["grouped"] {
			shared++
		}
	}
	require.GreaterOrEqual(t, shared, 16, "kernels that layers with different routers share")
}
