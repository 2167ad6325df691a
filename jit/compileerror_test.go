package jit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/ptx/emu"
)

// lineOf returns the number of the line of the kernel's text that has the instruction.
func lineOf(t testing.TB, s jit.Source, instruction string) int {
	t.Helper()
	for i, line := range bytes.Split(s.Module.Print().PTX, []byte("\n")) {
		if bytes.Contains(line, []byte(instruction)) {
			return i + 1
		}
	}
	require.Fail(t, "no "+instruction)
	return 0
}

// TestCompileErrorOfAnAssembler checks that the error adds Go lines to a log that
// names PTX lines.
func TestCompileErrorOfAnAssembler(t *testing.T) {
	dev := newDevice(t)
	s, storeAt := adder(t, 1)
	line := lineOf(t, s, "st.global")
	dev.Arm(faulty.Fault{Op: faulty.Compile, N: 1, Err: &driver.Error{
		Op: "cuLinkAddData", Code: 218, Name: "CUDA_ERROR_INVALID_PTX", Kind: gpu.ErrCompile, Log: fmt.Sprintf(
			"ptxas application ptx input, line %d; error   : Arguments mismatch for instruction 'st'\n"+
				"ptxas application ptx input, line 1; error   : no line of Go\n"+
				"ptxas application ptx input, line 99999999999999999999; error   : no line at all\n"+
				"ptxas fatal   : Ptx assembly aborted due to errors\x00", line)}})
	_, err := load(context.Background(), dev, s)
	var refused *jit.CompileError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "adder", refused.Kernel)
	assert.Contains(t, refused.Log, fmt.Sprintf("input, line %d (%s", line, storeAt))
	assert.Contains(t, refused.Log, "line 1; error")
	assert.Contains(t, refused.Log, "line 99999999999999999999; error")
	assert.ErrorContains(t, err, "compiling kernel adder:\n")
	assert.ErrorContains(t, err, storeAt)
	assert.NotContains(t, err.Error(), "\x00")
	require.ErrorIs(t, err, gpu.ErrCompile)
	var cause *driver.Error
	require.ErrorAs(t, err, &cause)
	assert.Equal(t, 218, cause.Code)
}

// TestCompileErrorOfTheEmulator checks that an error of the emulator names the Go lines that emitted
// the instructions, as an error with an assembler's log does.
func TestCompileErrorOfTheEmulator(t *testing.T) {
	dev := newDevice(t)
	s, storeAt := adder(t, 1)
	body := s.Module.Entries[0].Body
	for i := range body {
		if body[i].Form != nil && bytes.Contains([]byte(body[i].Form.Op), []byte("st.global")) {
			body[i].Args = body[i].Args[:1]
		}
	}
	_, err := load(context.Background(), dev, s)
	var refused *jit.CompileError
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Log, storeAt)
	require.ErrorIs(t, err, gpu.ErrCompile)
}

// TestCompileErrorOfTheDevice checks that an error that does not refuse the kernel, such as a
// broken device, is returned unchanged.
func TestCompileErrorOfTheDevice(t *testing.T) {
	dev := newDevice(t)
	dev.Arm(faulty.Fault{Op: faulty.Compile, N: 1, Err: &driver.Error{Op: "cuLinkCreate", Kind: driver.ErrBroken, Text: "not tried"}})
	s, _ := adder(t, 1)
	_, err := load(context.Background(), dev, s)
	require.ErrorIs(t, err, driver.ErrBroken)
	var refused *jit.CompileError
	assert.False(t, errors.As(err, &refused))
	assert.ErrorContains(t, err, "kernel adder")
}

// TestExplainFault checks that a fault of the emulator gets the Go line of the instruction.
func TestExplainFault(t *testing.T) {
	dev := newDevice(t)
	s, storeAt := adder(t, 1)
	f, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	other, err := load(context.Background(), dev, renamed(t))
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	defer stream.Close()

	params, err := devkit.PackParams(driver.DevicePtr(0x10), uint32(1))
	require.NoError(t, err)
	fault := gpu.Enqueue(stream, f.Function, &gpu.Launch{Block: gpu.Dim3{X: 1}}, params)
	require.Error(t, fault)
	explained := f.Explain(fault)
	assert.ErrorContains(t, explained, storeAt)
	var cause *emu.Fault
	require.ErrorAs(t, explained, &cause)
	assert.Equal(t, lineOf(t, s, "st.global"), cause.Line)
	require.ErrorIs(t, explained, driver.ErrBroken)
	assert.Contains(t, string(f.Listing()), storeAt)

	assert.Equal(t, fault, other.Explain(fault), "a fault of another kernel")
	assert.Equal(t, explained, f.Explain(explained), "an error already explained")
	later := f.Explain(stream.Synchronize(context.Background()))
	assert.ErrorContains(t, later, storeAt, "waiting returns the same cause")
	assert.ErrorContains(t, later, "Synchronize: not tried, the device broke at")
	assert.NoError(t, f.Explain(nil))
	assert.Equal(t, errInjected, f.Explain(errInjected))
}

// TestExplainNamesTheLinesOfAReport checks that each PTX line in the report of a deadlock gets its
// Go line.
func TestExplainNamesTheLinesOfAReport(t *testing.T) {
	dev := newDevice(t)
	s, storeAt := adder(t, 1)
	f, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	line := lineOf(t, s, "st.global")
	err = f.Explain(&driver.Error{Op: "launch", Kernel: "adder", Line: 1, Kind: driver.ErrBroken,
		Cause: fmt.Errorf("warp 0 (line 1) waits, warp 1 (line %d) waits, warp 2 (line %d)", line, line)})
	require.ErrorContains(t, err, fmt.Sprintf("\nline %d = %s", line, storeAt))
	assert.Equal(t, 1, strings.Count(err.Error(), fmt.Sprintf("line %d =", line)))
}

// renamed returns an adder kernel with another name.
func renamed(t testing.TB) jit.Source {
	s, _ := adder(t, 3)
	s.Name, s.Module.Entries[0].Name = "renamed", "renamed"
	return s
}
