package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sonicmoe/internal/num"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// maxHeader is the largest size in bytes of the header of a safetensors body.
const maxHeader = 1 << 16

// dtypes maps the layer's types to their names in safetensors.
var dtypes = map[moe.Type]string{moe.BF16: "BF16", moe.F16: "F16"}

// readTensor reads a safetensors file with one tensor, x [T, d]. T is the number of tokens, from 1
// to the parameter most, and d is the layer's width. The tensor's type is the layer's type or F32,
// and the result dtype is the name of that type.
func readTensor(body io.Reader, c moe.Config, most int) (x []float32, dtype string, err error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, "", err
	}
	f, err := safetensors.New(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, "", err
	}
	list, own := f.Tensors(), dtypes[c.Type]
	if len(list) != 1 || list[0].Name != "x" {
		return nil, "", fmt.Errorf("tensors %v, want x alone", list)
	}
	t := list[0]
	if t.DType != own && t.DType != "F32" || len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] != int64(c.Hidden) {
		return nil, "", fmt.Errorf("%v, want x %s or F32 [1 to %d, %d]", t, own, most, c.Hidden)
	}
	if t.Shape[0] > int64(most) {
		return nil, "", tooMany(most)
	}
	x = make([]float32, t.Shape[0]*t.Shape[1])
	raw := num.Bytes(x)
	if t.DType != "F32" {
		raw = make([]byte, 2*len(x))
	}
	if _, err := f.ReadAt("x", raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	switch t.DType {
	case "BF16":
		num.DecodeBF16(x, words(raw))
	case "F16":
		num.DecodeF16(x, words(raw))
	}
	return x, t.DType, nil
}

// words decodes 16-bit numbers from little-endian bytes.
func words(raw []byte) []uint16 {
	list := make([]uint16, len(raw)/2)
	copy(num.Bytes(list), raw)
	return list
}

// writeTensor writes a safetensors file with one tensor, o [T, width], of the type dtype that
// readTensor returned.
func writeTensor(w http.ResponseWriter, o []float32, width int, dtype string) error {
	raw := num.Bytes(o)
	if dtype != "F32" {
		bits := make([]uint16, len(o))
		if dtype == "BF16" {
			num.EncodeBF16(bits, o)
		} else {
			num.EncodeF16(bits, o)
		}
		raw = num.Bytes(bits)
	}
	w.Header().Set("Content-Type", typeTensors)
	return safetensors.Write(w, nil, safetensors.Source{Name: "o", DType: dtype, Shape: []int64{int64(len(o) / width), int64(width)}, Data: bytes.NewReader(raw)})
}
