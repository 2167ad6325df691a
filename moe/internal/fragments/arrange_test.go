package fragments_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/fragments"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// arrange runs the kernel Arrange on the published tensors of a layer.
func arrange(t *testing.T, c spec.Config, first, second []packed.Matrices) (units1, units2 []byte, refused uint32) {
	b := kt.New(t, kt.Early)
	m1, m2 := fragments.W1(c), fragments.W2(c)
	args := fragments.ArrangeArgs{Units1: b.Room(int(m1.Bytes())), Units2: b.Room(int(m2.Bytes())), Refused: kt.Upload(b, []uint32{0})}
	upload := func(m packed.Matrices, codes, scales, zeros, global *driver.DevicePtr) {
		*codes, *scales, *zeros, *global = kt.Upload(b, m.Codes), kt.Upload(b, m.Scales), kt.Upload(b, m.Zeros), kt.Upload(b, m.Global)
	}
	upload(first[0], &args.W1, &args.W1Scale, &args.W1Zero, &args.W1Global)
	if len(first) == 2 {
		upload(first[1], &args.W3, &args.W3Scale, &args.W3Zero, &args.W3Global)
	}
	upload(second[0], &args.W2, &args.W2Scale, &args.W2Zero, &args.W2Global)
	kt.Run(b, fragments.Arrange{Config: c}, 3, args)
	download := func(p driver.DevicePtr, m fragments.Matrix) []byte { return kt.Download[byte](b, p, int(m.Bytes())) }
	return download(args.Units1, m1), download(args.Units2, m2), kt.Download[uint32](b, args.Refused, 1)[0]
}

// TestArrange checks that the kernel Arrange writes the bytes of Matrix.Pack, and that it counts
// scales and zero points that Pack refuses.
func TestArrange(t *testing.T) {
	for _, format := range formats() {
		for i, c := range layers(format) {
			if testing.Short() && i != 1 {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				m1, m2 := fragments.W1(c), fragments.W2(c)
				first, second := published(m1, 3), published(m2, 4)
				want1, err := m1.Pack(first)
				require.NoError(t, err)
				want2, err := m2.Pack(second)
				require.NoError(t, err)
				got1, got2, refused := arrange(t, c, first, second)
				kt.SameBits(t, want1, got1, "units of W1")
				kt.SameBits(t, want2, got2, "units of W2")
				require.Zero(t, refused)
				spoilt := [][]byte{second[0].Scales}
				if m2.HasZeros {
					spoilt = append(spoilt, second[0].Zeros)
				}
				for _, bytes := range spoilt {
					before := slices.Clone(bytes)
					for i := range bytes {
						bytes[i] = 255 // every byte 255: the scale is NaN in every format
					}
					_, err = m2.Pack(second)
					require.Error(t, err)
					_, _, refused = arrange(t, c, first, second)
					require.NotZero(t, refused)
					copy(bytes, before)
				}
			})
		}
	}
}
