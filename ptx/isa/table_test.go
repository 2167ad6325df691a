package isa_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/isa"
)

func TestRowsAreWellFormed(t *testing.T) {
	require.Len(t, isa.Table, int(isa.NumForms))
	names := map[string]bool{}
	versions := map[isa.Version]bool{70: true, 71: true, 74: true, 76: true, 77: true, 78: true, 80: true, 81: true, 82: true, 83: true, 84: true, 85: true, 86: true, 87: true}
	for i := range isa.Table {
		f := &isa.Table[i]
		assert.False(t, names[f.Name], "two rows are named %s", f.Name)
		names[f.Name] = true
		assert.Equal(t, isa.ID(i), f.ID, f.Name)
		assert.NotEmpty(t, f.Manual, f.Name)
		assert.True(t, versions[f.Version], "row %s: version %s", f.Name, f.Version)
		assert.LessOrEqual(t, f.Arch, isa.SM90a, f.Name)
		assert.LessOrEqual(t, len(f.Mods), isa.MaxMods, f.Name)
		if f.Go != "" {
			assert.Regexp(t, `^[xk]\.[A-Z]\w*$`, f.Go, f.Name)
		}
		checkPlaces(t, f)
		checkArgs(t, f)
	}
}

func checkPlaces(t *testing.T, f *isa.Form) {
	for i, m := range f.Mods {
		require.NotEmpty(t, m.Alts, f.Name)
		if !m.Fixed() {
			require.NotEmpty(t, m.Name, "row %s: a place with a choice has no name", f.Name)
			assert.Equal(t, i, f.ModIndex(m.Name), "row %s: two places named %s", f.Name, m.Name)
		}
		seen := map[string]bool{}
		for _, alt := range m.Alts {
			assert.True(t, strings.HasPrefix(alt, "."), "row %s: %s", f.Name, alt)
			assert.False(t, seen[alt], "row %s: %s occurs twice", f.Name, alt)
			seen[alt] = true
			// Suppose that an optional place is empty. Then no later place may accept a modifier
			// that was meant for the empty place.
			for j := i + 1; m.Opt && j < len(f.Mods); j++ {
				assert.NotContains(t, f.Mods[j].Alts, alt, "row %s: %s could stand at two places", f.Name, alt)
				if !f.Mods[j].Opt {
					break
				}
			}
		}
	}
	for _, pair := range f.Not {
		for _, text := range pair {
			found := false
			for _, m := range f.Mods {
				for _, alt := range m.Alts {
					found = found || alt == text
				}
			}
			// Reductions (red) use atom's list of pairs. They have fewer operations than atom, so a
			// modifier in the list need not be at any of their places.
			assert.True(t, found || strings.Contains(f.Op, "red"), "row %s: Not names %s, which no place has", f.Name, text)
		}
	}
}

func checkArgs(t *testing.T, f *isa.Form) {
	for i := range f.Args {
		a := &f.Args[i]
		assert.NotEmpty(t, a.Name, "row %s operand %d", f.Name, i)
		for _, place := range []string{a.TypeOf, a.LenOf} {
			if place != "" {
				assert.GreaterOrEqual(t, f.ModIndex(place), 0, "row %s: no place %s", f.Name, place)
			}
		}
		if at := f.ModIndex(a.TypeOf); a.TypeOf != "" && at >= 0 {
			for j := range f.Mods[at].Alts {
				var m isa.Mods
				m[at] = uint8(j + 1)
				assert.NotEqual(t, isa.NoType, f.ArgType(m, i), "row %s: %s is no type", f.Name, f.Mods[at].Alts[j])
			}
		} else if a.Kind != isa.Sink && a.Kind != isa.Label && a.Kind != isa.Passed {
			assert.NotEqual(t, isa.NoType, a.Type, "row %s operand %s", f.Name, a.Name)
		}
		if i > 0 && f.Args[i-1].Opt {
			assert.True(t, a.Opt, "row %s: operand %s follows one that may be absent", f.Name, a.Name)
		}
		if a.Kind == isa.Vec || a.Kind == isa.TensorAddr {
			assert.True(t, a.Len > 0 || a.LenOf != "", "row %s: operand %s has no length", f.Name, a.Name)
		}
	}
}

// TestNoTwoRowsReadTheSame checks that rows with the same Op differ in modifiers or operands, so
// that the parser can distinguish them. If rows with different Ops fit a text, the parser takes the
// longer Op.
func TestNoTwoRowsReadTheSame(t *testing.T) {
	texts := map[string]string{}
	for i := range isa.Table {
		f := &isa.Table[i]
		kinds := ""
		for j := range f.Args {
			kinds += fmt.Sprint(" ", f.Args[j].Kind, f.Args[j].Dir, f.Args[j].Len)
		}
		for _, mods := range spellings(f.Mods) {
			key := f.Op + " " + mods + kinds
			assert.Equal(t, "", texts[key], "rows %s and %s both read %s%s", texts[key], f.Name, f.Op, mods)
			texts[key] = f.Name
		}
	}
}

// spellings returns all texts that modifiers at the given places can form.
func spellings(places []isa.Mod) []string {
	if len(places) == 0 {
		return []string{""}
	}
	var out []string
	for _, rest := range spellings(places[1:]) {
		if places[0].Opt {
			out = append(out, rest)
		}
		for _, alt := range places[0].Alts {
			out = append(out, alt+rest)
		}
	}
	return out
}

func TestWgmmaHasAllWidths(t *testing.T) {
	f := &isa.Table[isa.WgmmaBF16]
	at := f.ModIndex("shape")
	require.Len(t, f.Mods[at].Alts, 32)
	for i, shape := range f.Mods[at].Alts {
		var m isa.Mods
		m[at] = uint8(i + 1)
		assert.Equal(t, 8*(i+1), isa.WgmmaN(shape))
		assert.Equal(t, 4*(i+1), f.ArgLen(m, 0), "accumulators a thread of %s", shape)
	}
}

func TestNeedsRiseWithModifiers(t *testing.T) {
	f := &isa.Table[isa.LdGlobal]
	var m isa.Mods
	v, a := f.Needs(m)
	assert.Equal(t, "7.0 sm_70", v.String()+" "+a.String())
	m[f.ModIndex("l2")] = 1
	v, a = f.Needs(m)
	assert.Equal(t, "7.4 sm_80", v.String()+" "+a.String())
}

func TestArchNames(t *testing.T) {
	for a := isa.SM70; a <= isa.SM90a; a++ {
		got, ok := isa.ArchNamed(a.String())
		assert.True(t, ok)
		assert.Equal(t, a, got)
	}
	_, ok := isa.ArchNamed("sm_100")
	assert.False(t, ok)
}

func TestSpecialsAreUnique(t *testing.T) {
	for i, s := range isa.Specials {
		got, ok := isa.SpecialNamed(s.Name)
		assert.True(t, ok)
		assert.Equal(t, i, got, s.Name)
		assert.GreaterOrEqual(t, s.Version, s.Arch.MinVersion(), s.Name)
	}
}
