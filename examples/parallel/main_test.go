package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/moe/parallel"
)

// TestRanks checks the line that is printed for each rank, and that the results have the same
// bits as on one device.
func TestRanks(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-device", "emulated", "-cache", "off", "-runs", "1", "-shape", "64,48,7,3", "-tokens", "9"}
	require.NoError(t, run(t.Context(), append(args, "-ranks", "3", "-timeline"), &out, &errs), errs.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2+12+3*(1+7)+3*(1+13))
	require.Equal(t, "d=64 n=48 E=7 K=3 w1=concatenated logits=bf16, 9 tokens on each of 3 ranks; (x) is the time over that of one device with the tokens of one rank", lines[0])
	require.Less(t, strings.Index(out.String(), "rank 0  "), strings.Index(out.String(), "rank 1  "), "ranks in order")
	require.Less(t, strings.Index(out.String(), "rank 1  "), strings.Index(out.String(), "rank 2  "), "ranks in order")
	for _, want := range []string{"rank 0  experts 0-1  9 tokens", "rank 1  experts 2-3", "rank 2  experts 4-6", "forward ", "backward ", "/s each way", "saved 14.7 kB"} {
		require.Contains(t, out.String(), want)
	}
	require.Equal(t, 3, strings.Count(out.String(), "bits of one device"))
	for _, of := range []string{"rank 1 forward: ", "rank 2 backward: ", "  experts       0 |", "  dispatch      0 |", "  dW2, dW1        0 |"} {
		require.Contains(t, out.String(), of)
	}
	require.Empty(t, errs.String())
}

// TestPartialSums checks that a run with partial sums sends fewer bytes, and says that bits differ.
func TestPartialSums(t *testing.T) {
	sent := regexp.MustCompile(`sent ([0-9.]+) kB`)
	total := [2]float64{}
	for i, extra := range [][]string{nil, {"-partial-sums"}} {
		var out, errs bytes.Buffer
		args := []string{"-device", "emulated", "-cache", "off", "-runs", "1", "-shape", "128,16,8,8", "-tokens", "40", "-ranks", "2"}
		require.NoError(t, run(t.Context(), append(args, extra...), &out, &errs), errs.String())
		for _, of := range sent.FindAllStringSubmatch(out.String(), -1) {
			n, err := strconv.ParseFloat(of[1], 64)
			require.NoError(t, err)
			total[i] += n
		}
		require.Equal(t, 2*i, strings.Count(out.String(), "sums near those of one device, all else with its bits"))
	}
	// Each rank sends 40 tokens, and 160 rows or 40 sums.
	require.InDelta(t, 2*200*0.256, total[0], 10)
	require.InDelta(t, 2*80*0.256, total[1], 10)
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-transport", "pigeon"}, "want local, nccl or nccl-only"},
		{[]string{"-device", "emulated", "-transport", "nccl"}, "NCCL does not run on the emulated device"},
		{[]string{"-runs", "0"}, "want 0 or more ranks and 1 or more runs"},
		{[]string{"-device", "emulated", "-cache", "off", "-ranks", "11"}, "so that each rank has an expert"},
		{[]string{"-shape", "64,48,7,3"}, "needs -tokens"},
	} {
		var out, errs bytes.Buffer
		require.ErrorContains(t, run(t.Context(), c.args, &out, &errs), c.want)
	}
}

// TestDraw checks a timeline: its bars, and the share of an exchange behind other work.
func TestDraw(t *testing.T) {
	span := func(name string, side, moves bool, from, to int) parallel.Span {
		return parallel.Span{Name: name, Side: side, Moves: moves, From: time.Duration(from) * time.Millisecond, To: time.Duration(to) * time.Millisecond}
	}
	var b strings.Builder
	draw(&b, "rank 0 forward", []parallel.Span{span("dispatch", false, true, 0, 1), span("experts", false, false, 1, 3), span("return", true, true, 2, 5), span("sum", false, false, 5, 6)})
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, "rank 0 forward: 6.000 ms, exchanges 4.000 ms, of which 25 % behind other work", lines[0])
	require.Equal(t, "  dispatch      0 |"+strings.Repeat("=", 10)+strings.Repeat(" ", 50)+"|    0.000 to    1.000 ms", lines[1])
	require.Equal(t, "  return        0 |"+strings.Repeat(" ", 20)+strings.Repeat("=", 30)+strings.Repeat(" ", 10)+"|    2.000 to    5.000 ms", lines[3])
}
