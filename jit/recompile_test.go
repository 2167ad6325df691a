package jit_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/store"
	"sonicmoe/jit"
)

// poison replaces the machine code of a cache's only entry. The entry gets a valid seal, as Put
// would make it.
func poison(t *testing.T, c *cache.Cache, producer string, code []byte) store.Key {
	t.Helper()
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	key, err := store.ParseKey(infos[0].Key)
	require.NoError(t, err)
	e, outcome := store.Of(c).Get(key)
	require.Equal(t, store.Hit, outcome)
	require.Equal(t, store.Stored, store.Of(c).Put(key, store.Entry{PTX: e.PTX, Images: []store.Image{{Producer: producer, Code: code}}}))
	return key
}

// TestRecompile checks that sound entries are reproduced exactly, whatever their options. An image
// that was replaced must be found by each compiler that made the original.
func TestRecompile(t *testing.T) {
	compilers := map[string]jit.Compiler{"emulated": newOffline(t)}
	if by, err := jit.Ptxas(t.Context(), "sm_90a"); err == nil {
		compilers["ptxas"] = by
	}
	for name, by := range compilers {
		t.Run(name, func(t *testing.T) {
			c := cache.Open(cache.Options{Dir: t.TempDir()})
			s, _ := adder(t, 1)
			other, _ := adder(t, 2)
			for _, o := range []gpu.CompileOptions{{}, {LineInfo: true}, {OptLevel: 1}, {OptLevel: 3, LineInfo: true}} {
				require.NoError(t, jit.Warm(t.Context(), c, "sm_90a", []jit.Source{s, other}, jit.WarmOptions{By: by, Compile: o}))
			}
			check := &jit.Recompile{By: by, Arch: "sm_90a"}
			r, err := c.Verify(t.Context(), check.Check)
			require.NoError(t, err)
			assert.Equal(t, 8, r.Sound)
			assert.Equal(t, 8, check.Same())
			assert.Empty(t, check.Unchecked())

			key := poison(t, c, by.Producer(), []byte("EVIL MACHINE CODE"))
			r, err = c.Verify(t.Context(), check.Check)
			require.NoError(t, err)
			require.Len(t, r.Damaged, 1)
			assert.Equal(t, key.String(), r.Damaged[0].Key)
			assert.ErrorContains(t, r.Damaged[0].Err, "is not what "+by.Producer()+" makes of its PTX")
			_, outcome := store.Of(c).Get(key)
			assert.Equal(t, store.Miss, outcome, "the entry is no longer loaded")
		})
	}
}

// TestRecompileLeaves checks that modules that cannot be compared are counted, each with its
// reason, and that a compiler that fails finds no damage.
func TestRecompileLeaves(t *testing.T) {
	by := newOffline(t)
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	warmed(t, c, by, 1, 2)
	warmed(t, c, nil, 3)
	young := newOffline(t)
	young.producer = "ptxas 14.0.1"
	warmed(t, c, young, 1)
	e := store.Entry{PTX: []byte(".version 8.0\n"), Images: []store.Image{{Producer: by.producer, Code: []byte("code")}}}
	require.Equal(t, store.Stored, store.Of(c).Put(store.NewKey([]byte("another key")), e))
	check := &jit.Recompile{By: by, Arch: "sm_90a"}
	r, err := c.Verify(t.Context(), check.Check)
	require.NoError(t, err)
	assert.Empty(t, r.Damaged)
	assert.Equal(t, 2, check.Same())
	assert.Equal(t, map[string]int{"PTX alone": 1, "machine code of ptxas 14.0.1": 1, "PTX under a key that is not its own for sm_90a": 1}, check.Unchecked())

	by.err = &driver.Error{Op: "ptxas", Kind: gpu.ErrCompile, Log: "refused"}
	r, err = c.Verify(t.Context(), check.Check)
	require.NoError(t, err)
	assert.Len(t, r.Damaged, 2)
	assert.ErrorContains(t, r.Damaged[0].Err, "does not compile its PTX")
	by.err = errInjected
	warmed(t, c, young, 4)
	check = &jit.Recompile{By: young, Arch: "sm_90a"}
	young.err = errInjected
	r, err = c.Verify(t.Context(), check.Check)
	require.NoError(t, err)
	assert.Empty(t, r.Damaged, "a compiler that fails finds no damage")
	require.ErrorIs(t, check.Err(), errInjected)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Verify(ctx, check.Check)
	require.ErrorIs(t, err, context.Canceled)
}

// TestPtxasThatWritesSomethingElse checks that output that is not an image, or is an image for
// another architecture, is not cached.
func TestPtxasThatWritesSomethingElse(t *testing.T) {
	real := outside.Ptxas(t)
	s, _ := adder(t, 1)
	for name, script := range map[string]string{
		"text":         "echo EVIL MACHINE CODE > $out",
		"nothing":      ": > $out",
		"another chip": "printf '.version 8.0\\n.target sm_80\\n.visible .entry adder() { ret; }\\n' > $out.ptx; " + real + " -arch=sm_80 -o $out $out.ptx",
		"half":         real + ` "$@" && head -c 1000 $out > $out.half && mv $out.half $out`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PTXAS", shellScript(t, `case "$1" in --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;; esac
all="$*"; out=$(echo "$all" | sed 's/.* -o \([^ ]*\) .*/\1/')
`+script))
			by, err := jit.Ptxas(t.Context(), "sm_90a")
			require.NoError(t, err)
			c := cache.Open(cache.Options{Dir: t.TempDir()})
			err = jit.Warm(t.Context(), c, "sm_90a", []jit.Source{s}, jit.WarmOptions{By: by})
			require.ErrorIs(t, err, gpu.ErrWrongImage)
			infos, err := c.List(t.Context())
			require.NoError(t, err)
			assert.Empty(t, infos)
		})
	}
}

// shellScript writes a shell script to a file and returns the path.
func shellScript(t *testing.T, text string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("there is no shell here")
	}
	path := filepath.Join(t.TempDir(), "ptxas")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}
