//go:build linux || darwin

package cuda

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
)

// TestMemoryOfOtherProcesses checks allocations, their handles, and words that order streams. The
// stand-in opens a handle in the same process.
func TestMemoryOfOtherProcesses(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	s := f.stream(dev)
	p, err := dev.Alloc(1000)
	require.NoError(t, err)
	a, err := AllocationOf(dev, p+999)
	require.NoError(t, err)
	assert.Equal(t, p, a.From)
	assert.EqualValues(t, 1000, a.Bytes)
	other, err := dev.Alloc(1000)
	require.NoError(t, err)
	b, err := AllocationOf(dev, other)
	require.NoError(t, err)
	assert.NotEqual(t, a.ID, b.ID)

	h, err := Export(dev, a)
	require.NoError(t, err)
	f.log()
	opened, err := Import(dev, h)
	require.NoError(t, err)
	assert.Equal(t, p, opened)
	require.NoError(t, CloseImport(dev, opened))
	assert.Equal(t, "open flags 1\nclose memory\n", f.log())

	page := make([]byte, 4096)
	words, err := RegisterHost(dev, page)
	require.NoError(t, err)
	require.NoError(t, WriteValue(s, words+8, 7))
	assert.EqualValues(t, 7, page[8])
	require.NoError(t, WaitValue(s, words+8, 6))
	require.NoError(t, WaitValue(s, words+8, 7))
	require.NoError(t, UnregisterHost(dev, page))
	assert.Equal(t, "register 4096 bytes, flags 3\nunregister\n", f.log())
}

// TestMemoryOfOtherProcessesFails checks the errors of the same functions.
func TestMemoryOfOtherProcessesFails(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	s := f.stream(dev)
	page := make([]byte, 4096)
	for symbol, call := range map[symbol]func(dev driver.Device, s driver.Stream) error{
		symMemGetAddressRange: func(dev driver.Device, _ driver.Stream) error { _, err := AllocationOf(dev, 16); return err },
		symIpcGetMemHandle: func(dev driver.Device, _ driver.Stream) error {
			_, err := Export(dev, Allocation{From: 16, Bytes: 32})
			return err
		},
		symIpcOpenMemHandle:  func(dev driver.Device, _ driver.Stream) error { _, err := Import(dev, MemoryHandle{}); return err },
		symIpcCloseMemHandle: func(dev driver.Device, _ driver.Stream) error { return CloseImport(dev, 16) },
		symMemHostRegister:   func(dev driver.Device, _ driver.Stream) error { _, err := RegisterHost(dev, page); return err },
		symMemHostUnregister: func(dev driver.Device, _ driver.Stream) error { return UnregisterHost(dev, page) },
		symStreamWriteValue:  func(_ driver.Device, s driver.Stream) error { return WriteValue(s, 16, 1) },
		symStreamWaitValue:   func(_ driver.Device, s driver.Stream) error { return WaitValue(s, 16, 1) },
	} {
		f.fail(symbol, 801)
		err := call(dev, s)
		require.ErrorIs(t, err, driver.ErrUnsupported, "%v", symbol)
		require.ErrorContains(t, err, symbol.String())
		f.fail(symbol, 0)
		err = call(nil, nil)
		require.ErrorIs(t, err, driver.ErrUnsupported, "%v", symbol)
		require.ErrorContains(t, err, "want one of this package")
	}
	f.fail(symHostDevicePointer, 801)
	_, err := RegisterHost(dev, page)
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.Contains(t, f.log(), "unregister\n")
	f.fail(symHostDevicePointer, 0)
	_, err = AllocationOf(dev, 16)
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "address 0x10")
}
