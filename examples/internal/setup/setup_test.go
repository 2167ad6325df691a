package setup

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/peers"
)

var program = command.Program{Name: "abacus", Purpose: "counts."}

// TestSharedMachineCode checks that a message says why a bundle does not help the emulated
// device.
func TestSharedMachineCode(t *testing.T) {
	for env, want := range map[string]string{
		"": "", "off": "", "/some/dir": "",
		":warm.tar": "the emulated device runs PTX, and takes no machine code: warm.tar is for GPUs and saves no compilation here\n",
	} {
		t.Setenv("SONICMOE_CACHE", env)
		var errs bytes.Buffer
		dev, gpu, err := OpenDevice(t.Context(), Emulated, &errs)
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		assert.False(t, gpu)
		assert.Equal(t, want, errs.String(), env)
	}
}

// TestParse checks that help prints the program's purpose and flags to standard output without
// an error, and that every meaningless command line is a usage error.
func TestParse(t *testing.T) {
	parse := func(stdout io.Writer, args ...string) error {
		set := program.Flags()
		DeviceFlag(set)
		SizeFlags(set, true)
		return program.Parse(set, args, stdout)
	}
	var out, errs bytes.Buffer
	err := parse(&out, "-h")
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Equal(t, command.Done, program.Exit(err, &errs))
	assert.Empty(t, errs.String())
	assert.True(t, strings.HasPrefix(out.String(), "abacus counts.\n\n"))
	for _, text := range []string{"-device", "-row name", "-rows sizes", "-shape d,n,E,K", "-tokens T", "-list", "emulated"} {
		assert.Contains(t, out.String(), text)
	}
	for want, args := range map[string][]string{
		`"extra" is no flag`:                {"extra"},
		"not defined: -no":                  {"-no"},
		`no size is named "7B"`:             {"-row", "7B"},
		`no size is named "x"`:              {"-rows", "slice", "-rows", "7B n=256,x"},
		"has 3 numbers, must be d,n,E,K":    {"-shape", "1,2,3"},
		`"x" must be a whole number from 1`: {"-shape", "1,2,3,x"},
		`"0" must be a whole number from 1`: {"-shape", "1,2,3,0"},
		"must be at least 1":                {"-tokens", "0"},
	} {
		out.Reset()
		errs.Reset()
		err := parse(&out, args...)
		assert.ErrorContains(t, err, want, "%v", args)
		assert.Equal(t, command.Misuse, program.Exit(err, &errs), "%v", args)
		assert.Contains(t, errs.String(), "abacus: ")
		assert.Empty(t, out.String())
	}
	errs.Reset()
	assert.Equal(t, command.Failed, program.Exit(errors.New("no beads"), &errs))
	assert.Equal(t, "abacus: no beads\n", errs.String())
	assert.Equal(t, command.Done, program.Exit(nil, &errs))
}

func sizes(t *testing.T, many bool, args ...string) (*Sizes, error) {
	t.Helper()
	set := program.Flags()
	s := SizeFlags(set, many)
	return s, program.Parse(set, args, io.Discard)
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"-rows", "slice"}, []string{"7B n=256", "30B n=1024", "120B n=2048", "Qwen3-30B-A3B"}},
		{[]string{"-rows", "models"}, models},
		{[]string{"-row", "7b N=256", "-rows", "deepseek-v3,OLMoE-1B-7B", "-shape", "128, 64,4,2", "-tokens", "5"},
			[]string{"7B n=256", "DeepSeek-V3", "OLMoE-1B-7B", "128, 64,4,2"}},
	} {
		s, err := sizes(t, true, c.args...)
		require.NoError(t, err)
		rows, err := s.Calls()
		require.NoError(t, err)
		var names []string
		for _, r := range rows {
			names = append(names, r.Name)
			require.NoError(t, r.Config.Check(), r.Name)
			require.Equal(t, r.Tokens, r.Config.TokensHint, r.Name)
		}
		assert.Equal(t, c.want, names)
	}
	for list, want := range map[string]int{"all": len(peers.All()), "known": len(Known())} {
		s, err := sizes(t, true, "-rows", list)
		require.NoError(t, err)
		assert.Len(t, s.Rows(), want)
	}

	// If -tokens changes a size's number of tokens, the recorded speeds do not apply any more.
	s, err := sizes(t, false, "-row", "7B n=256", "-tokens", "64")
	require.NoError(t, err)
	assert.Equal(t, 64, s.Rows()[0].Tokens)
	assert.Zero(t, s.Rows()[0].SonicForwardMS)

	s, err = sizes(t, false, "-shape", "128,64,4,2")
	require.NoError(t, err)
	_, err = s.Calls()
	assert.ErrorContains(t, err, "-shape 128,64,4,2 needs -tokens")
	assert.Equal(t, command.Misuse, command.Code(err))
	_, err = sizes(t, false, "-row", "7B n=256", "-shape", "128,64,4,2")
	assert.ErrorContains(t, err, "one size is allowed")
	_, err = sizes(t, false, "-rows", "all")
	assert.ErrorContains(t, err, "not defined")

	s, err = sizes(t, true, "-list")
	require.NoError(t, err)
	var out bytes.Buffer
	assert.True(t, s.Listed(&out))
	assert.Equal(t, len(Known()), strings.Count(out.String(), "\n"))
}

// TestOpenDevice checks that the emulated device replaces a missing GPU, with a short message,
// but never a GPU that -device names.
func TestOpenDevice(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	var errs bytes.Buffer
	dev, gpu, err := OpenDevice(t.Context(), "", &errs)
	require.NoError(t, err)
	defer dev.Close()
	assert.False(t, gpu)
	assert.Equal(t, 1, strings.Count(errs.String(), "\n"))
	assert.Less(t, errs.Len(), 80)
	errs.Reset()
	_, _, err = OpenDevice(t.Context(), "cuda", &errs)
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "-device cuda: ")
	_, _, err = OpenDevice(t.Context(), "gpu", &errs)
	assert.Equal(t, command.Misuse, command.Code(err))
	assert.ErrorContains(t, err, `-device gpu: open device: no device is named "gpu", must be one of cuda, cuda:N`)
	assert.Empty(t, errs.String())
}
