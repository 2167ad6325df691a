package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/checkpoint/safetensors"
)

// hostMemory is an array that replaces a device's memory and stream. An address is an index of
// the array.
type hostMemory struct {
	driver.Stream
	bytes []byte
	sizes []int // sizes of the copies so far
	fail  error
}

func (h *hostMemory) CopyToDevice(dst driver.DevicePtr, src []byte) error {
	h.sizes = append(h.sizes, len(src))
	copy(h.bytes[dst:][:len(src)], src)
	return h.fail
}

func (h *hostMemory) CopyToHost(dst []byte, src driver.DevicePtr) error {
	h.sizes = append(h.sizes, len(dst))
	copy(dst, h.bytes[src:][:len(dst)])
	return h.fail
}

// twoTensors returns a file with two tensors, a and b, of 24 bytes each. All bytes are
// different.
func twoTensors(t *testing.T) source {
	data := make([]byte, 48)
	for i := range data {
		data[i] = byte(i)
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil,
		fileTensor("a", "U8", bytes.NewReader(data[:24]), 24), fileTensor("b", "U8", bytes.NewReader(data[24:]), 24)))
	f, err := safetensors.New(bytes.NewReader(b.Bytes()), int64(b.Len()))
	require.NoError(t, err)
	return source{path: "file", File: f}
}

// TestLoadByTurns checks that the blocks of two tensors are loaded alternately, three of each,
// with any chunk size.
func TestLoadByTurns(t *testing.T) {
	var want []byte
	for block := range 3 {
		for _, first := range []int{0, 24} {
			for i := range 8 {
				want = append(want, byte(first+8*block+i))
			}
		}
	}
	f := twoTensors(t)
	for _, chunk := range []int{1, 3, 5, 7, 8, 9, 16, 23, 24, 100} {
		h := &hostMemory{bytes: make([]byte, 48)}
		m := &memory{stream: h, chunk: chunk}
		require.NoError(t, m.load(context.Background(), 0, f, "a", 8, 16))
		require.NoError(t, m.load(context.Background(), 8, f, "b", 8, 16))
		assert.Equal(t, want, h.bytes, chunk)
	}
}

// TestLoadWhole checks that loading a whole tensor takes no more copies than the tensor has
// chunks.
func TestLoadWhole(t *testing.T) {
	h := &hostMemory{bytes: make([]byte, 30)}
	m := &memory{stream: h, chunk: 10}
	require.NoError(t, m.load(context.Background(), 2, twoTensors(t), "a", 24, 24))
	assert.Equal(t, []int{10, 10, 4}, h.sizes)
	for i := range 24 {
		assert.Equal(t, byte(i), h.bytes[2+i])
	}
	assert.Equal(t, make([]byte, 4), h.bytes[26:])
}

func TestLoadErrors(t *testing.T) {
	f := twoTensors(t)
	broken := errors.New("broken")
	m := &memory{stream: &hostMemory{bytes: make([]byte, 48), fail: broken}, chunk: 10}
	err := m.load(context.Background(), 0, f, "a", 24, 24)
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, `file: copying tensor "a" to the device`)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, m.load(ctx, 0, f, "a", 24, 24), context.Canceled)

	// This file becomes shorter after it was opened.
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, fileTensor("a", "U8", bytes.NewReader(make([]byte, 24)), 24)))
	whole := bytes.Clone(b.Bytes())
	short, err := safetensors.New(bytes.NewReader(whole), int64(len(whole)))
	require.NoError(t, err)
	shrunk, err := safetensors.New(&shrinking{whole, 1}, int64(len(whole)))
	require.NoError(t, err)
	m.stream = &hostMemory{bytes: make([]byte, 48)}
	require.NoError(t, m.load(context.Background(), 0, source{path: "file", File: short}, "a", 24, 24))
	err = m.load(context.Background(), 0, source{path: "file", File: shrunk}, "a", 24, 24)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.ErrorContains(t, err, `file: reading tensor "a" at byte 20 of 24`)
}

// shrinking is a file whose last bytes are missing when they are read.
type shrinking struct {
	whole []byte
	lost  int
}

func (s *shrinking) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(s.whole[:len(s.whole)-s.lost]).ReadAt(p, off)
}

// TestReadByTurns checks that every other block is read, starting with the first, with any
// chunk size.
func TestReadByTurns(t *testing.T) {
	h := &hostMemory{bytes: make([]byte, 100)}
	for i := range h.bytes {
		h.bytes[i] = byte(i)
	}
	want := []byte{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33}
	for _, chunk := range []int{1, 3, 4, 5, 16, 100} {
		m := &memory{stream: h, chunk: chunk}
		got, err := io.ReadAll(m.reader(10, 12, 4, 10))
		require.NoError(t, err)
		assert.Equal(t, want, got, chunk)
	}
}

func TestReader(t *testing.T) {
	h := &hostMemory{bytes: make([]byte, 100)}
	for i := range h.bytes {
		h.bytes[i] = byte(i)
	}
	m := &memory{stream: h, chunk: 32}
	got, err := io.ReadAll(m.reader(10, 70, 70, 70))
	require.NoError(t, err)
	assert.Equal(t, h.bytes[10:80], got)
	assert.LessOrEqual(t, len(h.sizes), 4)
	got, err = io.ReadAll(m.reader(10, 0, 1, 1))
	require.NoError(t, err)
	assert.Empty(t, got)
	h.fail = errors.New("broken")
	_, err = io.ReadAll(m.reader(10, 70, 70, 70))
	require.ErrorIs(t, err, h.fail)
}
