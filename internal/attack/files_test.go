//go:build unix

package attack

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// header returns a safetensors file that consists of a header only, with the header's true
// length.
func header(text string) string { return lying(len(text), text) }

// lying returns a safetensors file whose first field gives a wrong length for its header.
func lying(length int, text string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(length))) + text
}

// join returns a comma-separated list of n texts, which format makes from the numbers 0 to n-1.
func join(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// row is a hostile text, and a part of the error that it must cause. want is "" for a valid
// text.
type row struct{ name, text, want string }

// try writes the text of each row to a file and runs a program that reads the file.
func try(t *testing.T, rows []row, file string, args ...string) {
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, file)
			require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			refuses(t, dir, 100*time.Second, tt.want, args...)
			now, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.True(t, tt.text == string(now), "%s was written over", file)
		})
	}
}

func TestWeightsFiles(t *testing.T) {
	n := Rounds(30_000, 40_000_000)
	tensor := func(kind, shape, extent string) string {
		return header(`{"a":{"dtype":"` + kind + `","shape":[` + shape + `],"data_offsets":` + extent + `}}`)
	}
	try(t, []row{
		{"length 2^63", lying(-1<<63, "{}"), "header: has 9223372036854775808 bytes, must have at most"},
		{"length 2^64-1", lying(-1, "{}"), "header: has 18446744073709551615 bytes, must have at most"},
		{"length 10^8", lying(100_000_000, "{}"), "header: has 100000000 bytes, but the file ends after 2 of them"},
		{"spaces", header("{" + strings.Repeat(" ", min(99_999_998, 5*n))), "it ends"},
		{"shape of ones", tensor("BF16", strings.Repeat("1,", n)+"1", "[0,2]") + "xx", "shape has more than 64 numbers"},
		{"shape of zeros", tensor("BF16", strings.Repeat("0,", n)+"9223372036854775807", "[0,0]"), "shape has more than 64 numbers"},
		{"empty tensors", header("{" + join(n/25, `"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`) + "}"), `the file has "0", "1"`},
		{"metadata", header(`{"__metadata__":{` + join(n/6, `"%x":""`) + "}}"), "the file has none"},
		{"a long name", header(`{"` + strings.Repeat("a", min(99_000_000, 5*n)) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`), `the file has "aaa`},
		{"brackets", header(`{"a":{"dtype":"U8","shape":` + strings.Repeat("[", n)), "shape has [, must be integers"},
		{"nested objects", header(strings.Repeat(`{"a":`, n/3)), `unknown key "a"`},
		{"NaN", tensor("U8", "NaN", "[0,0]"), "shape has NaN, must be integers"},
		{"-0", tensor("U8", "-0", "[0,0]"), "shape has -0, must be integers"},
		{"product 2^64", tensor("U8", "4294967296,4294967296", "[0,0]"), "has more bits than 2^63"},
		{"2^60 numbers", tensor("F64", "1152921504606846976", "[0,0]"), "has more bits than 2^63"},
	}, "w.st", "layer", "-weights", "w.st", "-input", "w.st", "-output", "o.st", "-topk", "2", "-device", "emulated")
}

func TestModelFiles(t *testing.T) {
	const sizes = `"hidden_size":128,"moe_intermediate_size":64,"num_experts":4,"num_experts_per_tok":2`
	const model = `"model_type":"qwen3_moe","num_hidden_layers":1,` + sizes + "}"
	nested := func(n, blanks int) string {
		return strings.Repeat(`{"text_config":`+strings.Repeat(" ", blanks), n) + "{" + model + strings.Repeat("}", n)
	}
	rows := []row{
		{"sound", "{" + model, ""},
		{"BOM", "\xef\xbb\xbf{" + model, ""},
		{"nested", nested(9000, 0), "models in models 4 deep"},
		{"nested, 100 bytes each", nested(9000, 100), "models in models 4 deep"},
		{"nested, 1 KB each", nested(9000, 1000), "too large"},
		{"nested, 10 KB each", nested(Rounds(200, 9000), 10_000), "too large"},
		{"nested deep", nested(50_000, 0), "exceeded max depth"},
		{"nested deeper", nested(Rounds(100_000, 1_000_000), 0), "too large"},
		{"a long string", `{"x":"` + strings.Repeat("a", Rounds(2_000_000, 200_000_000)) + `",` + model, "too large"},
		{"blanks", strings.Repeat(" ", Rounds(2_000_000, 300_000_000)) + "{" + model, "too large"},
		{"a field twice", `{"num_experts":8,` + model, "the field num_experts twice"},
		{"text after the end", "{" + model + " and more", "invalid character 'a' after top-level value"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "invalid character 'ÿ'"},
		{"activation in capitals", `{"hidden_act":"SiLU",` + model, `hidden_act is "SiLU"`},
		{"activation is a list", `{"hidden_act":["gelu"],` + model, `hidden_act is ["gelu"], must be a string`},
	}
	for value, want := range map[string]string{
		"1e308": "hidden_size is 1e308, must be a whole number", "NaN": "hidden_size is NaN, must be a whole number", "-0": "hidden_size is 0, must be above 0",
		"9223372036854775808": "must be a whole number", "18446744073709551744": "must be a whole number", "4294967424": "must be at most 1048576",
		`"128"`: `hidden_size is "128", must be a whole number`, "[]": "hidden_size", "[128,256]": "hidden_size", "true": "hidden_size is true, must be a whole number",
		"0x80": "invalid character 'x'", "128.0": "", "1.28e2": "", "[128]": "",
	} {
		rows = append(rows, row{"hidden_size " + value, "{" + strings.Replace(model, "128", value, 1), want})
	}
	try(t, rows, "config.json", "warmup", "fill", "-config", "config.json", "-ptx-only", "-tokens", "64")
	for i := range rows {
		if rows[i].want == "" {
			rows[i].want = "there is neither model.safetensors.index.json nor a .safetensors file"
		}
	}
	try(t, rows, "config.json", "layer", "-model", ".", "-layer", "0", "-input", "x.st", "-output", "o.st", "-device", "emulated")
}

func TestLayersFiles(t *testing.T) {
	layers := func(list string) string { return `{"layers":[` + list + `]}` }
	layer := func(tokens string) string {
		return `{"hidden":128,"intermediate":64,"experts":4,"topK":2,"tokensHint":` + tokens + `}`
	}
	var many []string
	for i := range Rounds(2, 80) {
		many = append(many, strings.Replace(layer("8"), "128", fmt.Sprint(128+64*i), 1))
	}
	try(t, []row{
		{"sound", layers(layer("8")), ""},
		{"many", layers(strings.Join(many, ",")), ""},
		{"text after the end", layers(layer("8")) + " and more", "text after the end of the JSON"},
		{"two documents", layers(layer("8")) + layers(""), "text after the end of the JSON"},
		{"a field twice", layers(strings.Replace(layer("8"), "{", `{"hidden":64,`, 1)), "the field layers.hidden stands twice"},
		{"capitals", `{"LAYERS":[{"HIDDEN":128,"Intermediate":64,"experts":4,"TOPK":2,"tokensHint":8}]}`, ""},
		{"an unknown field", layers(strings.Replace(layer("8"), "{", `{"hiden":64,`, 1)), `unknown field "hiden"`},
		{"tokensHint 2^62", layers(layer("4611686018427387904")), "TokensHint is 4611686018427387904, must be"},
		{"tokensHint 2^63-1", layers(layer("9223372036854775807")), "TokensHint is 9223372036854775807, must be"},
		{"tokensHint 2^63", layers(layer("9223372036854775808")), "9223372036854775808"},
		{"width 2^20", layers(`{"hidden":1048576,"intermediate":1048576,"experts":1024,"topK":16,"tokensHint":2147483647}`), "TokensHint is 2147483647, must be"},
		{"blanks", strings.Repeat(" ", Rounds(20_000_000, 300_000_000)) + layers(layer("8")), "too large"},
	}, "layers.json", "warmup", "fill", "-layers", "layers.json", "-ptx-only")
}

func TestChoicesFiles(t *testing.T) {
	const want = "choices.json is not a file of choices: "
	try(t, []row{
		{"another JSON file", `{"precious": "data"}`, want + `json: unknown field "precious"`},
		{"broken", `{"Format":"sonicmoe choices 1","Choices":[{"Key":"my tuned row","Value":{"Version":1}},]}`, want + "invalid character ']'"},
		{"a newer format", `{"Format":"sonicmoe choices 2","Choices":[]}`, want + `its Format is "sonicmoe choices 2"`},
		{"no JSON", "precious notes", want + "invalid character 'p'"},
		{"blanks", strings.Repeat(" ", Rounds(70_000_000, 300_000_000)), "too large"},
	}, "choices.json", "tune", "-device", "emulated", "-shape", "128,64,4,2", "-tokens", "40", "-products", "up", "-choices", "choices.json")
}

func TestHistogramFiles(t *testing.T) {
	try(t, []row{
		{"nested", strings.Repeat("[", Rounds(100_000, 500_000)), "histogram"},
		{"a huge count", "[9223372036854775808,1,1,1]", "histogram"},
		{"negative", "[-1,1,1,1]", "Histogram[0] is -1, must be 0 or more"},
		{"no list", `{"rows":[1,1,1,1]}`, "histogram"},
		{"too few", "[1]", "Histogram is 1 experts, must be 4"},
	}, "histogram.json", "tune", "-device", "emulated", "-shape", "128,64,4,2", "-tokens", "40", "-products", "up", "-histogram", "histogram.json")
}
