package parallel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/ptx/emu"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// mostRanks is the number of ranks of the largest group.
const mostRanks = 8

// devices returns a device for each rank. Emulated devices have different timings, and the devices
// with late timing also search for races. With GPUs, consecutive ranks get consecutive GPUs in
// turns.
var devices = sync.OnceValues(func() (list []driver.Device, err error) {
	if name := drivertest.Name(); name != "emulated" {
		all, err := open.All(context.Background(), name)
		for i := range mostRanks {
			if err == nil {
				list = append(list, all[i%len(all)])
			}
		}
		return list, err
	}
	for i := range mostRanks {
		timing := []emu.Timing{emu.Late, emu.Early, emu.Random}[i%3]
		dev, err := emulated.New(emulated.Options{Timing: timing, Seed: uint64(i), Races: timing == emu.Late})
		if err != nil {
			return nil, err
		}
		list = append(list, dev)
	}
	return list, nil
})

// testCase is a layer with the number of tokens of each rank.
type testCase struct {
	name   string
	config moe.Config
	tokens []int
	// change, unless nil, changes the chosen experts. The pass is then ForwardExperts.
	change func(ids []int32)
	// together puts all ranks on one device. Streams then wait for events, and not the host.
	together bool
	// devices, unless nil, has the device of each rank.
	devices []driver.Device
	// losses are added in the backward pass, and reported unless they are zero.
	losses moe.Losses
	// twice makes a second backward pass, which adds its gradients of weights to the first ones.
	twice bool
}

func (c testCase) String() string {
	return fmt.Sprintf("%s %v W=%d %v", c.name, c.config, len(c.tokens), c.tokens)
}

func (c testCase) total() (n int) {
	for _, t := range c.tokens {
		n += t
	}
	return n
}

// chunks returns a valid number of chunks. Consecutive values of i give different numbers. With 0
// a pass of a test has one chunk.
func (c testCase) chunks(i int) int { return i % (c.config.NumExperts/len(c.tokens) + 1) }

// oneGPU runs the layer with all tokens on one device. If the case changes the experts, the result
// is a pass with the changed experts.
func (c testCase) oneGPU(t testing.TB, dev driver.Device) *trial.Trial {
	l, err := moe.New(context.Background(), dev, c.config, moe.WithoutCache(), moe.WithoutDecode(), moe.WithoutBackward())
	require.NoError(t, err)
	tr, err := trial.New(dev, l, c.total(), 1, 6)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	require.NoError(t, tr.Run(context.Background(), tr.Inference()))
	if c.change != nil {
		r, err := tr.Results(false)
		require.NoError(t, err)
		c.change(r.ExpertIDs)
		require.NoError(t, moe.Write(tr.Stream(), tr.Args.ExpertIDs, r.ExpertIDs))
		require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), tr.Inference()))
		require.NoError(t, tr.Stream().Synchronize(context.Background()))
	}
	return tr
}

// member is a rank of a group under test, with its buffers.
type member struct {
	*Rank
	dev    driver.Device
	stream driver.Stream
	memory *moe.Arena
	args   Args
	back   BackwardArgs // of the last backward pass
}

// deadline is the deadline of groups under test.
const deadline = time.Minute

// join makes a group of ranks.
func join(t testing.TB, c testCase, o Options) []*member {
	list, err := devices()
	require.NoError(t, err)
	list = slices.Clone(list[:len(c.tokens)])
	for i := range list {
		if c.together {
			list[i] = list[0]
		}
	}
	if c.devices != nil {
		list = c.devices
	}
	return joinOn(t, list, c, o)
}

// forwardOnly are the options of layers without kernels for backward passes.
var forwardOnly = []moe.Option{moe.WithoutBackward()}

// joinOn makes a group of ranks on devices. With an odd number of chunks no pass packs its rows.
func joinOn(t testing.TB, list []driver.Device, c testCase, o Options) []*member {
	transports, err := Local(list...)
	require.NoError(t, err)
	members := make([]*member, len(list))
	o.Config, o.Deadline, o.Layer = c.config, deadline, slices.Concat(o.Layer, []moe.Option{moe.WithoutCache()})
	for _, n := range c.tokens {
		o.MaxTokens = max(o.MaxTokens, n, 1)
	}
	var g errgroup.Group
	for i, dev := range list {
		g.Go(func() error {
			r, err := Join(context.Background(), dev, transports[i], o)
			members[i] = &member{Rank: r, dev: dev, memory: moe.NewArena(dev)}
			if err == nil && o.Chunks%2 == 1 {
				r.longPiece = 0
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	t.Cleanup(func() {
		for _, m := range members {
			require.NoError(t, errors.Join(m.memory.Free(), m.Close()))
		}
	})
	return members
}

// each calls body for every rank, in goroutines that run at the same time.
func each(members []*member, body func(i int, m *member) error) error {
	var g errgroup.Group
	for i, m := range members {
		g.Go(func() error { return body(i, m) })
	}
	return g.Wait()
}

// fill allocates a rank's buffers. It copies the rank's part of the inputs from a trial on one
// device, and poisons outputs and workspace.
func (m *member) fill(tr *trial.Trial, from, tokens int) (err error) {
	if m.stream, err = m.dev.NewStream(); err != nil {
		return err
	}
	sizes, err := m.Sizes()
	if err != nil {
		return err
	}
	s := m.Config.Shapes(tokens)
	m.args = Args{X: m.memory.Tensor(s.X), Scores: m.memory.Tensor(s.Scores), ExpertIDs: m.memory.Tensor(s.ExpertIDs), O: m.memory.Tensor(s.O),
		Workspace: m.memory.Buffer(sizes.Workspace)}
	if err := m.memory.Err(); err != nil {
		return err
	}
	if err := moe.Write(m.stream, m.args.X, tr.X[from*m.Config.Hidden:(from+tokens)*m.Config.Hidden]); err != nil {
		return err
	}
	for id, shape := range m.WeightShapes() {
		to := m.memory.Tensor(shape)
		*m.args.Weight(id) = to
		if whole := *tr.Args.Weight(id); spec.IsPacked(m.Config) && spec.Row(id).IsOfPacked() {
			raw := make([]byte, whole.Shape.Bytes())
			readTrial.Lock()
			err = tr.Stream().CopyToHost(raw, whole.Ptr)
			readTrial.Unlock()
			err = errors.Join(err, m.stream.CopyToDevice(to.Ptr, own(m.Rank, id, raw)))
		} else if bits := tr.Weights.Bits(id); bits != nil && len(*bits) > 0 {
			err = moe.Write(m.stream, to, own(m.Rank, id, *bits))
		} else if f := tr.Weights.F32(id); f != nil && len(*f) > 0 {
			err = moe.Write(m.stream, to, own(m.Rank, id, *f))
		}
		if err != nil {
			return err
		}
	}
	return m.poison()
}

// readTrial is held while a rank reads tensors of a trial.
var readTrial sync.Mutex

// own returns this rank's part of the values of a weight.
func own[E any](r *Rank, id moe.TensorID, all []E) []E {
	if isHome(id) {
		return all
	}
	each := len(all) / r.Config.NumExperts
	first, count := r.Experts()
	return all[first*each : (first+count)*each]
}

// poison fills outputs and workspace with NaN.
func (m *member) poison() error {
	for _, t := range []moe.Tensor{m.args.O, m.args.Scores, m.args.ExpertIDs} {
		if err := m.stream.Fill32(t.Ptr, 0xffffffff, t.Shape.Bytes()/4); err != nil {
			return err
		}
	}
	return m.stream.Fill32(m.args.Workspace.Ptr, 0xffffffff, m.args.Workspace.Bytes/4)
}
