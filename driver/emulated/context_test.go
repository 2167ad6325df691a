package emulated

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// TestLaunchEndsWithContext checks that an endless launch ends with the device's context. Later
// launches must return the same error, and memory must still be readable.
func TestLaunchEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dev := newDevice(t, Options{Context: ctx})
	image, err := dev.Compile(t.Context(), []byte(`.version 7.0
.target sm_80
.visible .entry forever(.param .u64 address)
{
	.reg .u64 %a;
	ld.param.u64 %a, [address];
again:
	st.global.u32 [%a], 1;
	bra again;
}
`), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f, err := m.Function("forever")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	p, err := dev.Alloc(4)
	require.NoError(t, err)
	time.AfterFunc(50*time.Millisecond, cancel)
	for range 2 {
		begun := time.Now()
		err = gpu.Enqueue(s, f, &gpu.Launch{}, binary.LittleEndian.AppendUint64(nil, uint64(p)))
		require.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, driver.ErrBroken)
		assert.ErrorContains(t, err, "stopped")
		assert.Less(t, time.Since(begun), 10*time.Second)
	}
	word := make([]byte, 4)
	require.NoError(t, s.CopyToHost(word, p))
	assert.Equal(t, []byte{1, 0, 0, 0}, word)
}
