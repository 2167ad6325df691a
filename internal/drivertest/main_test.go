package drivertest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
)

// tests is a stand-in for *testing.M that counts its runs.
type tests int

func (n *tests) Run() int { *n++; return 7 }

// TestMainWithoutItsDevice checks that, if the device cannot be opened, Main prints one line
// with the reason and runs no test.
func TestMainWithoutItsDevice(t *testing.T) {
	t.Setenv("SONICMOE_DEVICE", "cuda:3")
	for _, c := range []struct {
		err     error
		printed string
		runs    tests
		status  int
	}{
		{errors.New("no GPU here"), "SONICMOE_DEVICE=cuda:3: no GPU here\n", 0, 1},
		{nil, "", 1, 7},
	} {
		var ran tests
		var status int
		printed := stderr(t, func() {
			status = Main(&ran, func(_ context.Context, name string) (driver.Device, error) {
				assert.Equal(t, "cuda:3", name)
				if c.err != nil {
					return nil, c.err
				}
				return emulated.New(emulated.Options{})
			})
		})
		assert.Equal(t, c.printed, printed)
		assert.Equal(t, c.runs, ran)
		assert.Equal(t, c.status, status)
	}
	t.Setenv("SONICMOE_DEVICE", "")
	assert.Equal(t, "emulated", Name())
}

// stderr returns what a function prints to standard error.
func stderr(t *testing.T, f func()) string {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer file.Close()
	old := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = old }()
	f()
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	text, err := io.ReadAll(file)
	require.NoError(t, err)
	return string(text)
}
