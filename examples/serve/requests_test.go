package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/moe/checkpoint/safetensors"
)

// call sends a request and returns its status and body.
func call(t *testing.T, method, url, kind, body string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	client := http.Client{Timeout: 30 * time.Second} // the service may accept a wrong request and run it
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

// wrong returns the text in the JSON of an error.
func wrong(t *testing.T, header http.Header, body string) string {
	t.Helper()
	var e map[string]string
	require.Equal(t, typeJSON, header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(body), &e), body)
	require.Len(t, e, 1)
	return e["error"]
}

// TestWrongJSON checks that JSON that is not exactly of the service's form gets 400 or 413, and
// the reason.
func TestWrongJSON(t *testing.T) {
	s := onDevice(t, 1)
	web := httptest.NewServer(s.handler())
	defer web.Close()
	one := "[0" + strings.Repeat(", 1", 127) + "]"
	for body, want := range map[string]string{
		"":                                     "want {",
		"[]":                                   "want {",
		`{"token": []}`:                        "in the place of \"tokens\"",
		`{"x": 1, "tokens": []}`:               "in the place of \"tokens\"",
		`{"tokens": []}`:                       "0 tokens, want 1 to 8",
		`{"tokens": null}`:                     "'n' in the place of [",
		`{"tokens": [null]}`:                   "'n' in the place of [",
		`{"tokens": [[null, 1]]}`:              "'n' in the place of a number",
		`{"tokens": [[NaN]]}`:                  "'N' in the place of a number",
		`{"tokens": [[1, 2]]}`:                 "token 0 has 2 numbers, want 128",
		`{"tokens": [["one"]]}`:                "want {",
		`{"tokens": [[1, 2,]]}`:                "']' in the place of a number",
		`{"tokens": [[1e39]]}`:                 `"1e39" is not an FP32 number`,
		`{"tokens": [[01]]}`:                   `"01" is not an FP32 number`,
		`{"tokens": [[1`:                       "unexpected EOF",
		`{"tokens": [` + one + `}`:             "in the place of a comma or ]",
		`{"tokens": [` + one + `]`:             "unexpected EOF",
		`{"tokens": [` + one + `]} {}`:         "'{' after the end of the JSON",
		`{"tokens": [` + one + `], "more": 1}`: "',' in the place of }",
		`{"tokens": [[` + strings.Repeat("1,", 128) + `1]]}`: "token 0 has more than 128 numbers, want 128",
		`{"tokens": [[` + strings.Repeat("1", 100) + `]]}`:   "a number of more than 64 characters",
	} {
		code, header, text := call(t, http.MethodPost, web.URL+"/forward", typeJSON, body)
		assert.Equal(t, http.StatusBadRequest, code, body)
		assert.Contains(t, wrong(t, header, text), want, body)
	}
	for body, want := range map[string]string{
		`{"tokens": [` + strings.Repeat(one+",", 8) + `[1]]}`: "more than 8 tokens, want 1 to 8",
		strings.Repeat(" ", 1<<20):                            "the body has more than 33792 bytes",
	} {
		code, header, text := call(t, http.MethodPost, web.URL+"/forward", typeJSON, body)
		assert.Equal(t, http.StatusRequestEntityTooLarge, code)
		assert.Equal(t, want, wrong(t, header, text))
	}
}

// file returns the bytes of a safetensors file with the given tensors.
func file(t *testing.T, list ...safetensors.Source) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, nil, list...))
	return b.String()
}

func source32(name string, x []float32, shape ...int64) safetensors.Source {
	return safetensors.Source{Name: name, DType: "F32", Shape: shape, Data: bytes.NewReader(num.Bytes(x))}
}

// TestTensors checks that a safetensors request gets the same numbers as a JSON request, in the
// type of its tensor.
func TestTensors(t *testing.T) {
	s := onDevice(t, 4)
	web := httptest.NewServer(s.handler())
	defer web.Close()
	working(t, s)
	x := append(token(s, 1), token(s, 2)...)
	code, want := post(t, web.URL, x[:128], x[128:])
	require.Equal(t, http.StatusOK, code)
	bits := make([]uint16, len(x))
	num.EncodeBF16(bits, x)
	for dtype, raw := range map[string][]byte{"F32": num.Bytes(x), "BF16": num.Bytes(bits)} {
		body := file(t, safetensors.Source{Name: "x", DType: dtype, Shape: []int64{2, 128}, Data: bytes.NewReader(raw)})
		code, header, text := call(t, http.MethodPost, web.URL+"/layers/0/forward", typeTensors, body)
		require.Equal(t, http.StatusOK, code, text)
		require.Equal(t, typeTensors, header.Get("Content-Type"))
		f, err := safetensors.New(strings.NewReader(text), int64(len(text)))
		require.NoError(t, err)
		require.Equal(t, "o "+dtype+" [2 128]", f.Tensors()[0].String())
		got := make([]float32, 256)
		if dtype == "F32" {
			_, err = f.ReadAt("o", num.Bytes(got), 0)
		} else {
			o := make([]uint16, 256)
			_, err = f.ReadAt("o", num.Bytes(o), 0)
			num.DecodeBF16(got, o)
		}
		require.NoError(t, err)
		require.Equal(t, append(want[0], want[1]...), got, dtype)
	}
}

func TestWrongTensors(t *testing.T) {
	s := onDevice(t, 1)
	web := httptest.NewServer(s.handler())
	defer web.Close()
	x := make([]float32, 9*128)
	right := file(t, source32("x", x[:128], 1, 128))
	for _, tt := range []struct {
		body, kind string
		code       int
		want       string
	}{
		{"", typeTensors, 400, "safetensors: "},
		{right[:20], typeTensors, 400, "safetensors: header"},
		{right[:len(right)-1], typeTensors, 400, "safetensors: "},
		{right + "x", typeTensors, 400, "safetensors: "},
		{file(t, source32("y", x[:128], 1, 128)), typeTensors, 400, "tensors [y F32 [1 128]], want x alone"},
		{file(t, source32("x", x[:128], 1, 128), source32("y", x[:128], 1, 128)), typeTensors, 400, "want x alone"},
		{file(t, source32("x", x[:64], 1, 64)), typeTensors, 400, "x F32 [1 64], want x BF16 or F32 [1 to 8, 128]"},
		{file(t, source32("x", x[:128], 128)), typeTensors, 400, "x F32 [128], want x BF16 or F32 [1 to 8, 128]"},
		{file(t, source32("x", nil, 0, 128)), typeTensors, 400, "x F32 [0 128], want x BF16 or F32 [1 to 8, 128]"},
		{file(t, safetensors.Source{Name: "x", DType: "F16", Shape: []int64{1, 128}, Data: bytes.NewReader(make([]byte, 256))}), typeTensors, 400, "x F16 [1 128], want x BF16 or F32 [1 to 8, 128]"},
		{file(t, source32("x", x, 9, 128)), typeTensors, 413, "more than 8 tokens, want 1 to 8"},
		{strings.Repeat(" ", 1<<20), typeTensors, 413, "the body has more than 69632 bytes"},
		{right, "image/png", 415, `Content-Type is "image/png", want application/json or application/safetensors`},
		{right, "", 400, "want {\"tokens\": [[128 numbers], …]}, up to 8 tokens: "},
	} {
		code, header, text := call(t, http.MethodPost, web.URL+"/forward", tt.kind, tt.body)
		assert.Equal(t, tt.code, code, text)
		assert.Contains(t, wrong(t, header, text), tt.want)
	}
}

// TestProbes checks that probes and other paths answer in JSON: before the layers are loaded,
// afterwards, and while the service ends.
func TestProbes(t *testing.T) {
	s := onDevice(t, 1)
	web := httptest.NewServer(s.handler())
	defer web.Close()
	list := s.layers.Swap(nil)
	check := func(method, path string, want int, text string) {
		t.Helper()
		code, header, body := call(t, method, web.URL+path, "", "")
		require.Equal(t, want, code, path)
		if want == http.StatusOK {
			require.Contains(t, body, text, path)
			return
		}
		require.Contains(t, wrong(t, header, body), text, path)
	}
	check("GET", "/healthz", 200, `{"status":"ok"}`)
	check("GET", "/readyz", 503, "the layers are being loaded")
	check("POST", "/forward", 503, "the layers are being loaded")
	check("GET", "/version", 200, `"layers":[]`)
	s.layers.Store(list)
	check("GET", "/readyz", 200, `{"status":"ok"}`)
	check("GET", "/version", 200, `"layers":[{"layer":0,"model":"random weights","config":"d=128 n=64 E=16 K=2`)
	check("GET", "/version", 200, `"go":"go1.`)
	check("GET", "/forward", 405, "method GET, want POST")
	check("POST", "/metrics", 405, "method POST, want GET")
	check("GET", "/nothing", 404, "no /nothing here; want /forward")
	check("POST", "/layers/7/forward", 404, "want /layers/N/forward with N one of the layers [0]")
	s.begun.Store(time.Now().Add(-time.Minute).UnixNano())
	check("GET", "/healthz", 503, "a pass of layer 0 has run for 1m")
	check("GET", "/readyz", 503, "a pass of layer 0 has run for 1m")
	s.begun.Store(0)
	s.drain()
	check("GET", "/healthz", 200, "ok")
	check("GET", "/readyz", 503, "the service is ending")
}
