package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/jit"
)

// trainTiny trains a model of size tiny.
func trainTiny(t testing.TB, o options, create makeExperts) *curve {
	o.seed = 1
	tr, err := newTraining(testSize(t), o, create, io.Discard)
	require.NoError(t, err)
	c, err := tr.run(t.Context())
	require.NoError(t, err)
	return c
}

// TestLearnsAsReference checks that the device reaches the loss of the float64 reference within
// 1 %, and that training the experts reduces the loss by at least 5 %. It takes 200 steps in
// long runs and on a GPU.
func TestLearnsAsReference(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	s := testSize(t)
	o := options{steps: 10, balance: 0.01}
	if os.Getenv("SONICMOE_LONG") != "" || drivertest.Name() != "emulated" {
		o.steps = 200
	}
	want := trainTiny(t, o, newHostExperts(s.layer, false))
	got := trainTiny(t, o, testDevice(t, s, false).newExperts)
	assert.InEpsilon(t, want.last(), got.last(), 0.01)
	t.Logf("after %d steps: loss %.4f, float64 %.4f, off by %.2g %%", o.steps, got.last(), want.last(), 100*(got.last()/want.last()-1))
	assert.Less(t, got.last(), got.losses[0]-0.5)

	if o.steps < 200 {
		return // below 200 steps, training the experts reduces the loss by less than the bound
	}
	frozen := trainTiny(t, o, testDevice(t, s, true).newExperts)
	t.Logf("frozen experts: loss %.4f, %.0f %% more", frozen.last(), 100*(frozen.last()/got.last()-1))
	assert.Greater(t, frozen.last(), 1.05*got.last())
}

// TestReferenceLearns uses the reference, which is fast at this size. It checks that experts
// learn, and that every run gives the same numbers.
func TestReferenceLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	s := testSize(t)
	o := options{steps: 100, balance: 0.01}
	learned, frozen := trainTiny(t, o, newHostExperts(s.layer, false)), trainTiny(t, o, newHostExperts(s.layer, true))
	assert.Greater(t, frozen.last(), 1.05*learned.last())
	assert.Less(t, learned.last(), 0.5*math.Log(51), "half of what even guesses give")

	s.layer.LoRARank, s.layer.LoRAAlpha = 16, 32
	lora, err := newTraining(s, options{steps: 100, balance: 0.01, seed: 1}, newHostExperts(s.layer, false), io.Discard)
	require.NoError(t, err)
	adapted, err := lora.run(t.Context())
	require.NoError(t, err)
	assert.Greater(t, frozen.last(), 1.05*adapted.last(), "an adapter learns")

	s, o.steps = testSize(t), 5
	assert.Equal(t, trainTiny(t, o, newHostExperts(s.layer, false)), trainTiny(t, o, newHostExperts(s.layer, false)))
}

// TestRanks checks that a model whose experts are spread over ranks has the losses of one device, bit
// for bit, and that it writes the same text. A pass that writes has one token, so that ranks have none.
// With partial sums the losses are near those of one device, but not the same.
func TestRanks(t *testing.T) {
	s, o := testSize(t), options{steps: 6, balance: 0.01, seed: 1}
	groups := []options{{ranks: 1}, {ranks: 3}, {ranks: 4}, {ranks: 3, sums: true}}
	if testing.Short() {
		o.steps, groups = 2, []options{{ranks: 3}, {ranks: 3, sums: true}}
	}
	train := func(create makeExperts) (*curve, []uint8) {
		tr, err := newTraining(s, o, create, io.Discard)
		require.NoError(t, err)
		c, err := tr.run(t.Context())
		require.NoError(t, err)
		text, err := tr.model.write(t.Context(), tr.corpus.symbols[:s.context], 3, rand.New(rand.NewPCG(1, 1)))
		require.NoError(t, err)
		return c, text
	}
	want, text := train(testDevice(t, s, false).newExperts)
	for _, of := range groups {
		dev, err := open.Device(t.Context(), drivertest.Name())
		require.NoError(t, err)
		list, err := of.openRanks(t.Context(), dev, drivertest.Name() != "emulated")
		require.NoError(t, err)
		g, err := newGroup(t.Context(), list, of, s, cache.Open(cache.Options{Dir: "off"}))
		require.NoError(t, err)
		got, written := train(g.newExperts)
		if of.sums {
			require.NotEqual(t, want.losses, got.losses, "%d ranks", of.ranks)
			require.InEpsilonSlice(t, want.losses, got.losses, 1e-3, "%d ranks", of.ranks)
		} else {
			require.Equal(t, want, got, "%d ranks", of.ranks)
			require.Equal(t, text, written, "%d ranks", of.ranks)
		}
		require.NoError(t, g.Close())
		for _, dev := range list {
			jit.Forget(dev)
			require.NoError(t, dev.Close())
		}
	}
}

// spread returns the load of the busiest expert, divided by an even share.
func (c *curve) spread() float64 {
	total, most := 0, 0
	for _, n := range c.load[0] {
		total, most = total+n, max(most, n)
	}
	return float64(most)/float64(total)*float64(len(c.load[0])) - 1
}

// TestBalanceKeepsExpertsBusy checks that all experts get nearly the same load if the balancing
// loss has a large weight.
func TestBalanceKeepsExpertsBusy(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	create := newHostExperts(testSize(t).layer, true)
	with := trainTiny(t, options{steps: 60, balance: 1}, create)
	without := trainTiny(t, options{steps: 60}, create)
	t.Logf("busiest expert over an even share: %.3f, without balancing %.3f", with.spread(), without.spread())
	assert.Less(t, with.spread(), 0.7*without.spread())
}

func TestRun(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "loss.png")
	var out, errs bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-device", drivertest.Name(), "-size", "tiny", "-steps", "3", "-sample", "5", "-plot", picture, "-cache", "off"}, &out, &errs))
	assert.Empty(t, errs.String())
	for _, want := range []string{
		"tiny: 1 block of d=128 n=64 E=4 K=2", "text of 4096 bytes, a tenth held out", "3 steps of 128 tokens", "step     3  held out ",
		"each layer keeps 0.1 MB", "it writes: ",
	} {
		assert.Contains(t, out.String(), want)
	}
	last := regexp.MustCompile(`loss ([0-9.]+) nats a byte`).FindStringSubmatch(out.String())
	require.Len(t, last, 2, out.String())
	loss, err := strconv.ParseFloat(last[1], 64)
	require.NoError(t, err)
	assert.InDelta(t, 4, loss, 1)
	file, err := os.ReadFile(picture)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(file, []byte("\x89PNG")))
}

// TestSample checks that a model that has learned one sentence by heart writes this sentence.
func TestSample(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	s := testSize(t)
	text := strings.Repeat("all is in flux and nothing stays. ", 12)
	tr := &training{corpus: newCorpus(text), size: s, steps: 40, out: io.Discard}
	var err error
	tr.model, err = newModel(s, len(tr.corpus.alphabet), 1, newHostExperts(s.layer, false))
	require.NoError(t, err)
	_, err = tr.run(t.Context())
	require.NoError(t, err)
	var out bytes.Buffer
	tr.out = &out
	require.NoError(t, tr.sample(t.Context(), 60))
	written := regexp.MustCompile(`after "(.*)" it writes: "(.*)"`).FindStringSubmatch(out.String())
	require.Len(t, written, 3, out.String())
	assert.Len(t, written[2], 60)
	assert.Contains(t, text, written[1]+written[2])
}

func TestDraw(t *testing.T) {
	for u, want := range map[float64]uint8{0: 0, 0.49: 0, 0.51: 2, 0.999: 2} {
		assert.Equal(t, want, draw([]float64{3, math.Inf(-1), 3}, u), u)
	}
	assert.Equal(t, uint8(1), draw([]float64{0, math.NaN()}, 0.9), "the last one, whatever the logits")
}

// TestDiverges checks that a training whose learning rate is much too large ends with an error,
// instead of a curve of NaN.
func TestDiverges(t *testing.T) {
	tr, err := newTraining(testSize(t), options{steps: 20, rate: 1e200, seed: 1}, newHostExperts(testSize(t).layer, true), io.Discard)
	require.NoError(t, err)
	_, err = tr.run(t.Context())
	assert.ErrorContains(t, err, "must be finite: a smaller -rate may help")
}

func TestPrintLoad(t *testing.T) {
	var out bytes.Buffer
	(&curve{load: [][]int{{10, 20, 30, 0, 40}, {0, 0}}}).printLoad(&out)
	assert.Equal(t, "load of block 0's experts: [▂▄▆ █] from 0.00 to 2.00 of an even share\n", out.String())
}

func TestWrongFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`-size is "huge", must be one of tiny, small, large`: {"-size", "huge"},
		`-steps is -1, must be at least 0`:                   {"-steps", "-1"},
		`-balance is -1, must be a number from 0`:            {"-balance", "-1"},
		`-rate is NaN, must be a number from 0`:              {"-rate", "NaN"},
		`-sample is -1, must be at least 0`:                  {"-sample", "-1"},
		`-balance is +Inf`:                                   {"-balance", "Inf"},
		`must be .png or .svg`:                               {"-plot", "loss.gif"},
		`-ranks is -1, must be at least 0`:                   {"-ranks", "-1"},
		`-ranks is set, must not be with -lora`:              {"-ranks", "2", "-lora", "8"},
		`-partial-sums is set, must not be without -ranks`:   {"-partial-sums"},
		`-device is reference, must be another with -ranks`:  {"-ranks", "2", "-device", "reference"},
		`"tiny" is no flag`:                                  {"tiny"},
		`toaster`:                                            {"-device", "toaster"},
	} {
		var out, errs bytes.Buffer
		assert.ErrorContains(t, run(t.Context(), args, &out, &errs), want, fmt.Sprint(args))
	}
}

// TestRate checks that the learning rate first rises and then falls to almost nothing.
func TestRate(t *testing.T) {
	for _, steps := range []int{1, 2, 3, 200} {
		tr := training{size: size{rate: 1}, steps: steps}
		top := 0.0
		for i := range steps {
			r := tr.rate(i)
			require.Positive(t, r)
			require.LessOrEqual(t, r, 1.0)
			top = max(top, r)
		}
		assert.Equal(t, 1.0, top, steps)
	}
}

// TestCompare checks that the model learns with each rule of rounding, and that the held-out
// losses are computed with plain top-K.
func TestCompare(t *testing.T) {
	if testing.Short() {
		t.Skip("two layers' kernels, emulated, take a minute")
	}
	picture := filepath.Join(t.TempDir(), "ways.png")
	var out bytes.Buffer
	err := run(t.Context(), []string{"-device", "emulated", "-size", "tiny", "-steps", "2", "-cache", "off", "-rounding", "nearest", "-plot", picture}, &out, io.Discard)
	require.NoError(t, err)
	for _, want := range []string{"none: held out", "nearest/32: held out", "% of plain top-K", "step    none  nearest/32"} {
		require.Contains(t, out.String(), want)
	}
	require.FileExists(t, picture)
	for _, args := range [][]string{{"-rounding", "sideways"}, {"-seeds", "0"}, {"-rounding", "up", "-device", "reference"}} {
		require.Error(t, run(t.Context(), args, io.Discard, io.Discard), args)
	}
}

// TestPrintLoss checks that a training loss far below the held-out loss gets a remark.
func TestPrintLoss(t *testing.T) {
	for heldOut, remark := range map[float64]bool{1.2: true, 1.05: false, 0.9: false} {
		var out bytes.Buffer
		c := curve{losses: []float64{4, 1}, heldOut: []point{{0, 4}, {2, heldOut}}}
		c.printLoss(&out, 3*time.Second)
		assert.Contains(t, out.String(), fmt.Sprintf("loss 1.0000 nats a byte (mean of the last tenth of the steps), held out %.4f, 3 s in all\n", heldOut))
		assert.Equal(t, remark, strings.Contains(out.String(), "parts of the short text by heart"), heldOut)
	}
}
