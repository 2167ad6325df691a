package main

import (
	"flag"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/moe"
)

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args, io.Discard)
	require.NoError(t, err)
	return o
}

func names(t *testing.T, args ...string) (list []string) {
	t.Helper()
	for _, r := range parsed(t, args...).rows {
		list = append(list, r.Name)
	}
	return list
}

func TestRowFlags(t *testing.T) {
	require.Equal(t, []string{"7B n=256", "DeepSeek-V3", "128,64,4,2"}, names(t, "-row", "7B n=256", "-rows", "deepseek-v3", "-shape", "128,64,4,2", "-tokens", "64"))
	require.Equal(t, []string{"128,64,4,2"}, names(t, "-decode", "-shape", "128,64,4,2"), "the tokens are those of -batches")
	o := parsed(t)
	gpu, err := o.sizes(true)
	require.NoError(t, err)
	require.Equal(t, "7B n=256", gpu[0].Name)
	small, err := o.sizes(false)
	require.NoError(t, err)
	require.Equal(t, report.Size{Shape: "128,64,4,2", Tokens: 256}, report.SizeOf(small[0]))
	fewer := parsed(t, "-tokens", "64")
	for _, gpu := range []bool{false, true} {
		own, err := fewer.sizes(gpu)
		require.NoError(t, err)
		require.Equal(t, []int{64, 64}, []int{own[0].Tokens, own[0].Config.TokensHint})
	}
	half := parsed(t, "-type", "f16", "-row", "7B n=256")
	halves, err := half.sizes(true)
	require.NoError(t, err)
	require.Equal(t, "7B n=256 f16", halves[0].Name)
	require.NoError(t, moe.Check(halves[0].Config))
	require.Equal(t, moe.F16, halves[0].Config.Type)
	require.Equal(t, moe.BF16, half.rows[0].Config.Type)
	of := parsed(t, "-weights", "nvfp4", "-row", "7B n=256")
	packed, err := of.sizes(true)
	require.NoError(t, err)
	require.Equal(t, "7B n=256 nvfp4", packed[0].Name)
	require.NoError(t, moe.Check(packed[0].Config))
	require.Equal(t, "nvfp4", packed[0].Config.Weights)
	require.Equal(t, 200*time.Millisecond, o.warm)
	require.GreaterOrEqual(t, o.repeats, 20)
	for _, r := range setup.Known() {
		require.NoError(t, r.Config.Check(), r.Name)
		again, err := report.SizeOf(r).Row()
		require.NoError(t, err)
		require.Equal(t, r.Config, again.Config)
	}
	_, err = report.Size{Shape: "1,2,3"}.Row()
	require.ErrorContains(t, err, "must be d,n,E,K")
}

// TestWrongFlags checks that a wrong flag is refused with a text that says what would
// be right.
func TestWrongFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`no size is named "7B"`:             {"-row", "7B"},
		"-shape 1,2,3,4 needs -tokens":      {"-shape", "1,2,3,4"},
		"must be d,n,E,K":                   {"-shape", "1,2,3"},
		`"x" must be a whole number from 1`: {"-shape", "1,2,x,4"},
		"-pass sideways, must be one of":    {"-pass", "sideways"},
		`-routing "none", must be all`:      {"-routing", "none"},
		"-type is f16, must be bf16":        {"-type", "f16", "-rounding"},
		`"f32" must be bf16 or f16`:         {"-type", "f32"},
		`"int3" must be one of mxfp4, fp8`:  {"-weights", "int3"},
		"-pass both and -weights are given": {"-weights", "fp8", "-pass", "both"},
		"-points and -weights are given":    {"-weights", "fp8", "-points"},
		"-repeats 0":                        {"-repeats", "0"},
		"must be .png or .svg":              {"-plot", "x.gif"},
		`"all" is no flag`:                  {"all"},
		"flag provided but not defined":     {"-nothing"},
		"-pass and -decode are given":       {"-decode", "-pass", "both"},
		"-rounding and -decode are given":   {"-decode", "-rounding"},
		"-routing and -rounding are given":  {"-rounding", "-routing", "all"},
		"-json and -turns are given":        {"-turns", "-json", "-"},
		"-row and -fit-from are given":      {"-fit-from", "a.json", "-row", "7B n=256"},
		"-full and -against are given":      {"-against", "old", "-full"},
		"-alone and -turns are given":       {"-turns", "-alone", "1s"},
		"-row and -causes are given":        {"-causes", "-row", "7B n=256"},
		"-pause is 1s, must not be":         {"-pause", "1s"},
		"-batches needs -decode":            {"-batches", "1,2"},
		"-round needs -rounding":            {"-round", "nearest"},
		"-round-tile needs -rounding":       {"-decode", "-round-tile", "16"},
		"-json: open /no/such/folder/a.":    {"-json", "/no/such/folder/a"},
		"not a regular file":                {"-json", "/dev/null"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, want, "%v", args)
	}
	_, err := parse([]string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}
