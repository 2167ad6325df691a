package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu"
)

// TestKernelOf checks that a kernel is found by each form of its name, and that an error lists the
// kernels of the file.
func TestKernelOf(t *testing.T) {
	text := ".version 8.0\n.target sm_90a\n.address_size 64\n"
	for _, name := range []string{"_ZN2M73addILi64ELi3EEEvPfi", "_ZN2M83addILi64EEEvPfi", "_Z3subPfi", "plain"} {
		text += fmt.Sprintf(".visible .entry %s(.param .u64 a, .param .u32 n) { ret; }\n", name)
	}
	m, err := emu.Load([]byte(text))
	require.NoError(t, err)
	for name, want := range map[string]string{
		"plain": "plain", "_Z3subPfi": "_Z3subPfi", "sub": "_Z3subPfi", "sub(float*, int)": "_Z3subPfi",
		"M7::add": "_ZN2M73addILi64ELi3EEEvPfi", "M7::add<64, 3>": "_ZN2M73addILi64ELi3EEEvPfi", "M8::add<64>": "_ZN2M83addILi64EEEvPfi",
	} {
		k, err := kernelOf(m, name)
		require.NoError(t, err, name)
		assert.Equal(t, want, k.Name())
	}
	for name, says := range map[string]string{"add": "2 kernels of the file have the name", "": "4 kernels", "mul": `no kernel "mul" in the file`} {
		_, err := kernelOf(m, name)
		require.ErrorContains(t, err, says)
		assert.ErrorContains(t, err, "_Z3subPfi\n  C++: sub(float*, int)\n  param 0: 8 bytes\n  param 1: 4 bytes\n  at most 1024 threads")
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-ptx", kernelFile, "-list"}, &out, io.Discard))
	assert.Contains(t, out.String(), "sum\n  param 0: 8 bytes\n")
}

// TestWant checks that a run compares a buffer with the wanted numbers.
func TestWant(t *testing.T) {
	folder := t.TempDir()
	text, err := os.ReadFile(launchFile)
	require.NoError(t, err)
	write := func(numbers ...uint32) {
		header := fmt.Sprintf("{'descr': '<u4', 'fortran_order': False, 'shape': (%d,), }\n", len(numbers))
		data := append([]byte(npyMagic+"\x01\x00"), binary.LittleEndian.AppendUint16(nil, uint16(len(header)))...)
		data = append(data, header...)
		for _, n := range numbers {
			data = binary.LittleEndian.AppendUint32(data, n)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, "want.npy"), data, 0o600))
	}
	launch := filepath.Join(folder, "sum.json")
	mended := mend(t)
	for name, c := range map[string]struct {
		numbers   []uint32
		tolerance string
		says      string
	}{
		"right":                  {[]uint32{2016, 6112, 10208}, "0", ""},
		"the first only":         {[]uint32{2016}, "0", ""},
		"within the tolerance":   {[]uint32{2017, 6110, 10200}, "0.001", ""},
		"outside the tolerance":  {[]uint32{2016, 6000, 10208}, "0.001", "buffer out: 1 of 3 elements are wrong: [1] is 6112, want 6000"},
		"more than the buffer's": {make([]uint32, 99), "0", "has 99 words, must have at most"},
	} {
		write(c.numbers...)
		edited := strings.Replace(string(text), `"out": {`, `"out": {"want": "want.npy", "tolerance": `+c.tolerance+`, `, 1)
		require.NotEqual(t, string(text), edited)
		require.NoError(t, os.WriteFile(launch, []byte(edited), 0o600))
		err := run(t.Context(), arguments(mended, launch, "-check", "1"), io.Discard, io.Discard)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
}
