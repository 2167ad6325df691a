package open

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/mumax"
)

func TestUnknownNames(t *testing.T) {
	for _, name := range []string{"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cud", "CUDA", ":0"} {
		_, err := Device(t.Context(), name)
		require.ErrorIs(t, err, driver.ErrInvalid, name)
		assert.ErrorContains(t, err, name)
		for _, known := range Names() {
			assert.ErrorContains(t, err, known)
		}
	}
}

// Every name of a GPU reaches the driver library, whose absence is named.
func TestNoLibrary(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	for _, name := range []string{"", "cuda", "cuda:0", "cuda:3"} {
		dev, err := Device(t.Context(), name)
		require.ErrorIs(t, err, driver.ErrNoDevice, name)
		assert.Nil(t, dev)
		assert.ErrorContains(t, err, "/no/such/libcuda.so")
	}
}

// Without its tag the name is known all the same, and says what is missing.
func TestMumax(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	_, err := Device(t.Context(), "mumax:1")
	if mumax.Built {
		require.ErrorIs(t, err, driver.ErrNoDevice)
		assert.Contains(t, Names(), "mumax:N")
		return
	}
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "tag mumax")
	assert.NotContains(t, Names(), "mumax")
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Device(ctx, "cuda")
	require.ErrorIs(t, err, context.Canceled)
}
