// Command mutate measures how many mistakes the tests find. It plants mistakes in the packages
// whose bugs would cost most, runs the tests with one mistake at a time, and counts the
// mistakes that make a test fail.
//
//	go run ./.ci/mutate [-n 25] [-seed 1] [-only cache,jit] [-at jit/kernel.go:167] [-list]
//
// Known tools (gremlins, go-mutesting) build the tests anew for each mistake. This program
// builds all mistakes of a package into one test binary. Each mistake has a switch that an
// environment variable turns on, so that a mistake costs only one run of the binary.
//
// The mistakes are: a comparison whose bound is moved by one or whose direction is reversed, &&
// instead of ||, a negated condition, a missing statement or early return, + instead of -, *
// instead of +, and a number that is larger by one. A test run that exceeds its time limit
// counts as a found mistake.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// group is a set of packages in which mistakes are planted, with the tests that must find them.
// These are first the quick tests of the mistake's own package, if it has tests, and then the
// tests of suites.
type group struct {
	packages []string
	suites   []suite
}

// suite is a part of a package's tests. It must not contain tests that compare a digest of the
// kernels' text or of the outputs' bits, or that read the sources. Such tests notice every
// change, also one that is no mistake.
type suite struct {
	of   string // the package
	run  string // value of -test.run
	skip string // value of -test.skip: long tests that find few mistakes
}

const digests = "TestPTX|TestGolden|TestAssemble|TestReading|TestNewProductIsOneRow"

var groups = []group{
	{packages: []string{"./cache", "./internal/disk"}, suites: []suite{{of: "./cache"}}},
	{packages: []string{"./driver/cuda"}},
	{packages: []string{"./jit"}},
	{packages: []string{"./ptx/emu"}},
	{packages: []string{"./moe/internal/kernel", "./moe/internal/kernel/bias", "./moe/internal/kernel/dh", "./moe/internal/kernel/dw", "./moe/internal/kernel/drouter"}, suites: []suite{
		{of: "./moe", run: "TestBackwardSmall|TestForwardSmall|TestKindsOfExperts|TestLists|TestRoundedLayer|TestPackedForward|TestEstimateMatchesLayer"}}},
	{packages: []string{"./moe/internal/kernel/decode", "./moe/internal/fragments"}, suites: []suite{
		{of: "./moe", run: "TestSmallBatchBits|TestDecode|TestBatchInvariance|TestPackedForward|TestRoutingKindsInSmallBatches"}}},
	{packages: []string{"./moe/internal/route/choose", "./moe/internal/route/order", "./moe/internal/route/rounding", "./moe/internal/route/scores", "./moe/internal/route/training"}, suites: []suite{
		{of: "./moe", run: "TestRout|TestLists|TestRounded|TestSmallBatchBits|TestLogits|TestLoads|TestSelection|TestBackwardSmall|TestWrong"}}},
	{packages: []string{"./moe/checkpoint", "./moe/checkpoint/safetensors", "./moe/checkpoint/weights"}, suites: []suite{
		{of: "./examples/layer"}}},
	{packages: []string{"./internal/packed", "./moe/internal/fragments", "./moe/checkpoint/weights"}, suites: []suite{
		{of: "./moe", run: "TestPacked"}, {of: "./examples/layer", run: "Packed|Model"}}},
	{packages: []string{"./moe/parallel", "./moe/internal/exchange", "./moe/parallel/nccl"}, suites: []suite{{of: "./moe/parallel"}}},
	{packages: []string{"./examples/serve"}},
	{packages: []string{"./autotune", "./moe/tune"}, suites: []suite{{of: "./moe/tune"}}},
	{packages: []string{"./moe"}, suites: []suite{
		{of: "./moe", skip: "TestKindsOfExperts|TestSizes|EveryStep|TestWarmWith|TestDamaged|TestSixteen|TestKilled|TestBitFlips|TestBitsOf|TestRoutingKinds|TestStart|Timings"}}},
}

// variable is the environment variable that holds the number of the mistake to turn on.
const variable = "SONICMOE_MUTANT"

// mutant is one mistake: a range of a file, and the text that replaces it.
type mutant struct {
	pkg        string
	file       string
	line       int
	begin, end int // byte offsets
	what       string
	// with returns the replacement text. In it the mistake happens only if the switch numbered
	// n is on.
	with func(n int) string
}

func main() {
	n := flag.Int("n", 25, "mistakes of each group")
	seed := flag.Uint64("seed", 1, "of the sample")
	only := flag.String("only", "", "groups, by the first package without ./, with commas")
	at := flag.String("at", "", "of the sample, the mistakes in these lines, with commas")
	list := flag.Bool("list", false, "list the mistakes, run nothing")
	flag.Parse()
	if err := mutate(*n, *seed, *only, *at, *list); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func mutate(n int, seed uint64, only, at string, list bool) error {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	killed, total := 0, 0
	for _, g := range groups {
		if only != "" && !slices.Contains(strings.Split(only, ","), g.packages[0][2:]) {
			continue
		}
		all, err := g.mutants()
		if err != nil {
			return err
		}
		chosen := sample(rand.New(rand.NewPCG(seed, uint64(len(all)))), all, n)
		if at != "" {
			lines := strings.Split(at, ",")
			chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return !slices.Contains(lines, m.place()) })
		}
		fmt.Printf("%s: %d of %d mistakes\n", strings.Join(g.packages, " "), len(chosen), len(all))
		if list {
			for _, m := range chosen {
				fmt.Println("  ", m)
			}
			continue
		}
		k, err := g.try(dir, chosen)
		if err != nil {
			return err
		}
		killed, total = killed+k, total+len(chosen)
		fmt.Printf("  %d of %d noticed\n", k, len(chosen))
	}
	if total > 0 {
		fmt.Printf("%d of %d noticed (%d %%)\n", killed, total, 100*killed/total)
	}
	return nil
}

// String returns the place and the mistake, such as "jit/kernel.go:167: 1 -> 1+1".
func (m mutant) String() string { return m.place() + ": " + m.what }

// place returns the file and the line, such as "jit/kernel.go:167".
func (m mutant) place() string {
	file := m.file
	if wd, err := os.Getwd(); err == nil {
		file = strings.TrimPrefix(file, wd+string(filepath.Separator))
	}
	return fmt.Sprintf("%s:%d", file, m.line)
}

// sample returns n random mistakes that do not overlap, in the order of the files.
func sample(rng *rand.Rand, all []mutant, n int) []mutant {
	var out []mutant
	for _, i := range rng.Perm(len(all)) {
		m := all[i]
		if len(out) == n {
			break
		}
		if !slices.ContainsFunc(out, func(o mutant) bool { return o.file == m.file && o.begin < m.end && m.begin < o.end }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b mutant) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.begin, b.begin)) })
	return out
}

// try builds the group's tests with all chosen mistakes. For each mistake it runs the tests
// until one fails.
func (g group) try(dir string, chosen []mutant) (killed int, err error) {
	overlay, err := g.overlay(dir, chosen)
	if err != nil {
		return 0, err
	}
	var programs []*program
	for _, p := range g.packages {
		programs = append(programs, &program{suite: suite{of: p}, own: p})
	}
	for _, s := range g.suites {
		programs = append(programs, &program{suite: s})
	}
	for i, p := range programs {
		p.file = filepath.Join(dir, fmt.Sprint("tests", i))
		if err := p.build(overlay); err != nil {
			return 0, err
		}
		begun := time.Now()
		if out, err := p.runTests(-1, 20*time.Minute); err != nil {
			return 0, fmt.Errorf("without a mistake the tests of %s fail: %w\n%s", p.of, err, out)
		}
		p.limit = 5*time.Since(begun) + 20*time.Second
	}
	for i, m := range chosen {
		if !slices.ContainsFunc(programs, func(p *program) bool { return p.notices(i, m) }) {
			fmt.Println("  survived:", m)
			continue
		}
		killed++
	}
	return killed, nil
}
