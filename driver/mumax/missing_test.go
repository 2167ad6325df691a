//go:build !(mumax && cgo)

package mumax_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/mumax"
)

func TestBuiltWithoutTheTag(t *testing.T) {
	_, err := mumax.Open(t.Context(), 0, mumax.Options{})
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "tag mumax")
	assert.False(t, mumax.Built)
}
