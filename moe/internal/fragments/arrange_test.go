package fragments_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/fragments"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// arrange runs the kernel Arrange on the published tensors of a layer.
func arrange(t *testing.T, c spec.Config, codes1, scales1, codes2, scales2 [][]byte) (units1, units2 []byte, refused uint32) {
	b := kt.New(t, kt.Early)
	m1, m2 := fragments.W1(c), fragments.W2(c)
	args := fragments.ArrangeArgs{
		W1: kt.Upload(b, codes1[0]), W1Scale: kt.Upload(b, scales1[0]), W2: kt.Upload(b, codes2[0]), W2Scale: kt.Upload(b, scales2[0]),
		Units1: b.Room(int(m1.Bytes())), Units2: b.Room(int(m2.Bytes())), Refused: kt.Upload(b, []uint32{0}),
	}
	if len(codes1) == 2 {
		args.W3, args.W3Scale = kt.Upload(b, codes1[1]), kt.Upload(b, scales1[1])
	}
	kt.Run(b, fragments.Arrange{Config: c}, 3, args)
	download := func(p driver.DevicePtr, m fragments.Matrix) []byte { return kt.Download[byte](b, p, int(m.Bytes())) }
	return download(args.Units1, m1), download(args.Units2, m2), kt.Download[uint32](b, args.Refused, 1)[0]
}

// TestArrange checks that the kernel Arrange writes the bytes of Matrix.Pack, and that it counts
// scales that Pack refuses.
func TestArrange(t *testing.T) {
	for _, format := range formats() {
		for i, c := range layers(format) {
			if testing.Short() && i != 1 {
				continue
			}
			t.Run(c.String(), func(t *testing.T) {
				tensors := 1
				if c.GateUp == spec.Apart {
					tensors = 2
				}
				m1, m2 := fragments.W1(c), fragments.W2(c)
				codes1, scales1 := published(m1, tensors, 3)
				codes2, scales2 := published(m2, 1, 4)
				want1, err := m1.Pack(codes1, scales1)
				require.NoError(t, err)
				want2, err := m2.Pack(codes2, scales2)
				require.NoError(t, err)
				got1, got2, refused := arrange(t, c, codes1, scales1, codes2, scales2)
				kt.SameBits(t, want1, got1, "units of W1")
				kt.SameBits(t, want2, got2, "units of W2")
				require.Zero(t, refused)
				for i := range scales2[0] {
					scales2[0][i] = 255 // every byte 255: the scale is NaN in FP32, in bf16 and in E8M0
				}
				_, err = m2.Pack(codes2, scales2)
				require.Error(t, err)
				_, _, refused = arrange(t, c, codes1, scales1, codes2, scales2)
				require.NotZero(t, refused)
			})
		}
	}
}
