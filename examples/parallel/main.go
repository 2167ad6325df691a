// Command parallel runs one MoE layer whose experts are spread over ranks, forward and
// backward. It checks that O and all gradients have the same bits as on one device. With -partial-sums
// it checks that O and DX are close to those of one device, and that all else has the same bits. It
// prints bytes sent, speed, and the load of each rank.
//
//	go run ./examples/parallel                       # all GPUs, else four emulated devices
//	go run ./examples/parallel -ranks 3 -device emulated
//	go run ./examples/parallel -partial-sums         # fewer bytes, and other bits
//	go run ./examples/parallel -row "30B n=1024" -tokens 16384 -timeline
//	go run ./examples/parallel -transport nccl       # all GPUs of this process
//	torchrun --no-python --nproc-per-node 8 parallel -transport nccl
//
// If there are fewer GPUs than ranks, ranks share GPUs. With NCCL they cannot.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/internal/command"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/parallel"
	"sonicmoe/moe/parallel/nccl"
)

var program = command.Program{Name: "parallel", Purpose: "runs a layer over ranks, checks its bits against one device, and prints bytes, speed and load."}

func main() { program.Main(run) }

// small is the layer of the emulated device.
var small = peers.Row{Name: "small", Tokens: 48, Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 10, TopK: 4}}

// job is a run of the command: a layer over ranks.
type job struct {
	out      io.Writer
	row      peers.Row
	boost    float64
	ranks    int
	chunks   int
	runs     int
	timeline bool
	sums     bool
	onlyNCCL bool
	deadline time.Duration
	cache    *cache.Cache
	weights  *trial.Trial // the tokens of all ranks, and the weights of the whole layer
	reports  []string     // the lines of each rank of this process
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := program.Flags()
	device, dir, sizes := setup.DeviceFlag(flags), setup.CacheFlag(flags), setup.SizeFlags(flags, false)
	j := job{out: stdout}
	flags.IntVar(&j.ranks, "ranks", 0, "run `N` ranks in this process (default: one for each GPU, or four emulated)")
	flags.IntVar(&j.chunks, "chunks", 0, "multiply the tokens of other ranks in `C` chunks; the rows of a chunk go home while the next chunk is multiplied (default: a choice by size)")
	flags.IntVar(&j.runs, "runs", 10, "passes to time, of which the median counts")
	flags.BoolVar(&j.timeline, "timeline", false, "draw a timeline of both passes for each rank")
	flags.BoolVar(&j.sums, "partial-sums", false, "send a sum for each token and rank, and not a row for each of its experts (parallel.Options.PartialSums)")
	flags.DurationVar(&j.deadline, "deadline", time.Minute, "longest time of a pass")
	by := flags.String("transport", "local", "`way` the bytes move: local (between the devices of this process), nccl (between processes of torchrun, mpirun or Slurm, or the GPUs of this process: copies if all are on one host, else NCCL), or nccl-only (NCCL moves all bytes)")
	if err := program.Parse(flags, args, stdout); err != nil || sizes.Listed(stdout) {
		return err
	}
	if *by != "local" && *by != "nccl" && *by != "nccl-only" {
		return command.Usagef("-transport %s: want local, nccl or nccl-only", *by)
	}
	j.onlyNCCL = *by == "nccl-only"
	if j.ranks < 0 || j.runs < 1 {
		return command.Usagef("-ranks %d -runs %d: want 0 or more ranks and 1 or more runs", j.ranks, j.runs)
	}
	rows, err := sizes.Calls()
	if err != nil {
		return err
	}
	first, gpu, err := setup.OpenDevice(ctx, *device, stderr)
	if err != nil {
		return err
	}
	if err := first.Close(); err != nil {
		return err
	}
	if err := j.size(rows, sizes, gpu); err != nil {
		return err
	}
	j.cache = cache.Open(cache.Options{Dir: *dir})
	kind := setup.Emulated
	if gpu {
		kind = "cuda"
	}
	byNCCL := *by != "local"
	if byNCCL && kind != "cuda" {
		return command.Usagef("-transport %s needs a GPU: NCCL does not run on the emulated device", *by)
	}
	return j.start(ctx, kind, byNCCL)
}

// size sets the layer: the layer that the flags name, or a default layer for a GPU or for the
// emulated device.
func (j *job) size(asked []peers.Row, sizes *setup.Sizes, gpu bool) (err error) {
	j.row, j.boost = small, 5
	switch {
	case len(asked) > 0:
		j.row = asked[0]
	case gpu:
		if j.row, err = setup.Row("Qwen3-30B-A3B"); err != nil {
			return err
		}
		j.row.Tokens = 16384
		fallthrough
	default:
		j.row = sizes.Call(j.row)
	}
	if gpu {
		j.boost = 1
	}
	return nil
}

// start opens the devices of this process, connects the ranks and runs each in a goroutine.
func (j *job) start(ctx context.Context, kind string, byNCCL bool) error {
	o, err := nccl.FromEnv(os.Getenv)
	o.OnlyNCCL = j.onlyNCCL
	launched := byNCCL && err == nil
	var devices []driver.Device
	defer func() {
		for _, d := range devices {
			_ = d.Close() // the results are known by now
		}
	}()
	if launched {
		dev, err := open.Device(ctx, fmt.Sprintf("%s:%d", kind, o.Local))
		if err != nil {
			return err
		}
		devices = append(devices, dev)
	} else if devices, err = j.open(ctx, kind); err != nil {
		return err
	}
	switch {
	case launched:
		j.ranks = o.Ranks
	case j.ranks == 0:
		j.ranks = len(devices)
	}
	if !launched || o.Rank == 0 {
		j.head(kind)
	}
	j.reports = make([]string, j.ranks)
	defer func() { fmt.Fprint(j.out, strings.Join(j.reports, "")) }()
	x, w := trial.Draw(j.row.Config, j.ranks*j.row.Tokens, 1, j.boost)
	j.weights = &trial.Trial{X: x, Weights: w}
	if launched {
		return j.rank(ctx, devices[0], func(ctx context.Context) (parallel.Transport, error) { return nccl.Connect(ctx, devices[0], o) })
	}
	connect, err := j.connect(devices, byNCCL)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for i := range j.ranks {
		g.Go(func() error {
			return j.rank(ctx, devices[i%len(devices)], func(ctx context.Context) (parallel.Transport, error) { return connect(ctx, i) })
		})
	}
	return g.Wait()
}

// head prints what runs.
func (j *job) head(kind string) {
	fmt.Fprintf(j.out, "%v, %d tokens on each of %d ranks; (x) is the time over that of one device with the tokens of one rank\n", j.row.Config, j.row.Tokens, j.ranks)
	if kind == setup.Emulated {
		fmt.Fprintln(j.out, "times of the emulated device say nothing about a GPU")
	}
}

// emulatedRanks is the number of emulated devices if -ranks is not given.
const emulatedRanks = 4

// open opens all GPUs, or one emulated device for each rank.
func (j *job) open(ctx context.Context, kind string) (list []driver.Device, err error) {
	if kind != setup.Emulated {
		return open.All(ctx, kind)
	}
	if j.ranks == 0 {
		j.ranks = emulatedRanks
	}
	for range j.ranks {
		dev, err := open.Device(ctx, kind)
		if err != nil {
			return list, err
		}
		list = append(list, dev)
	}
	return list, nil
}

// connect returns a function that connects a rank of this process to the others.
func (j *job) connect(devices []driver.Device, byNCCL bool) (func(ctx context.Context, rank int) (parallel.Transport, error), error) {
	of := func(i int) driver.Device { return devices[i%len(devices)] }
	if byNCCL {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		at := l.Addr().String()
		return func(ctx context.Context, rank int) (parallel.Transport, error) {
			return nccl.Connect(ctx, of(rank), nccl.Options{Rank: rank, Ranks: j.ranks, Address: at, OnlyNCCL: j.onlyNCCL})
		}, l.Close()
	}
	var list []driver.Device
	for i := range j.ranks {
		list = append(list, of(i))
	}
	transports, err := parallel.Local(list...)
	return func(_ context.Context, rank int) (parallel.Transport, error) { return transports[rank], nil }, err
}
