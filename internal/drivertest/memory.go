package drivertest

import (
	"bytes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

func testMemory(b *bench) {
	require.NoError(b, b.dev.Free(0), "freeing 0 does nothing")
	for _, size := range []int64{0, -1} {
		_, err := b.dev.Alloc(size)
		require.ErrorIs(b, err, driver.ErrInvalid, "%d", size)
	}
	free, total, err := b.dev.Memory()
	require.NoError(b, err)
	assert.Positive(b, free)
	assert.GreaterOrEqual(b, total, free)
	p, q := b.alloc(1), b.alloc(1000)
	assert.NotEqual(b, p, q)
}

func testOutOfMemory(b *bench) {
	_, err := b.dev.Alloc(1 << 50)
	require.ErrorIs(b, err, driver.ErrOutOfMemory)
	require.NoError(b, b.dev.Err())
	assert.Equal(b, []uint32{1, 2, 3}, b.get(b.put([]uint32{1, 2, 3}), 3), "the device must stay usable")
}

func testCopies(b *bench) {
	data := make([]byte, 1<<20+7)
	for i := range data {
		data[i] = byte(i * 37 >> 3)
	}
	p, q := b.alloc(1<<20+256), b.alloc(1<<20+256)
	sent := bytes.Clone(data)
	require.NoError(b, b.stream.CopyToDevice(p, sent))
	clear(sent) // from here on, sent may be changed
	require.NoError(b, b.stream.Copy(q, p, int64(len(data))))
	back := make([]byte, len(data))
	require.NoError(b, b.stream.CopyToHost(back, q))
	require.True(b, bytes.Equal(data, back))

	// These copies have odd sizes and offsets.
	require.NoError(b, b.stream.Copy(q+3, p+1, 5))
	require.NoError(b, b.stream.CopyToHost(back[:10], q))
	assert.Equal(b, append(append(bytes.Clone(data[:3]), data[1:6]...), data[8:10]...), back[:10])

	// Copies of zero bytes may use any address.
	require.NoError(b, b.stream.CopyToDevice(p, nil))
	require.NoError(b, b.stream.CopyToHost(nil, p))
	require.NoError(b, b.stream.CopyToDevice(0, []byte{}))
	require.NoError(b, b.stream.Copy(q, p, 0))
	require.NoError(b, b.stream.Copy(0, 0, 0))
	require.NoError(b, b.stream.Fill32(p, 1, 0))
}

func testWrongCopies(b *bench) {
	p := b.alloc(256)
	for name, err := range map[string]error{
		"copy to address 0":     b.stream.CopyToDevice(0, []byte{1}),
		"copy from address 0":   b.stream.CopyToHost(make([]byte, 1), 0),
		"device copy to 0":      b.stream.Copy(0, p, 4),
		"device copy from 0":    b.stream.Copy(p, 0, 4),
		"negative copy":         b.stream.Copy(p, p+128, -4),
		"negative fill":         b.stream.Fill32(p, 0, -1),
		"fill at address 0":     b.stream.Fill32(0, 0, 4),
		"fill at an odd place":  b.stream.Fill32(p+2, 0, 4),
		"waiting for no event":  b.stream.Wait(nil),
		"event without stream":  b.newEvent().Record(nil),
		"launching no function": gpu.Enqueue(b.stream, nil, line(1), nil),
	} {
		require.ErrorIs(b, err, driver.ErrInvalid, name)
	}
	assert.Equal(b, uint32(poison), b.get(p, 1)[0], "wrong calls must do nothing")
}

func testFill32(b *bench) {
	p := b.alloc(4096)
	require.NoError(b, b.stream.Fill32(p+4, 0x01020304, 1000))
	got := b.get(p, 1024)
	for i, w := range got {
		want := uint32(poison)
		if i >= 1 && i <= 1000 {
			want = 0x01020304
		}
		require.Equal(b, want, w, "word %d", i)
	}
}

func testAllocAsync(b *bench) {
	require.NoError(b, b.stream.FreeAsync(0), "freeing 0 does nothing")
	_, err := b.stream.AllocAsync(0)
	require.ErrorIs(b, err, driver.ErrInvalid)
	p, err := b.stream.AllocAsync(4000)
	require.NoError(b, err)
	require.NoError(b, b.stream.Fill32(p, 7, 1000))
	assert.Equal(b, uint32(7), b.get(p, 1000)[999])
	q, err := b.stream.AllocAsync(4000)
	require.NoError(b, err)
	assert.NotEqual(b, p, q)
	require.NoError(b, b.stream.FreeAsync(p))
	require.NoError(b, b.stream.FreeAsync(q))
	require.NoError(b, b.stream.Synchronize(b.Context()))
}
