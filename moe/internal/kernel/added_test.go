package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/overlaytest"
)

// TestNewProductIsOneRow checks that a new product needs only its own file, a row in spec.Products,
// and the name of its kernel in Kernels. All code that reads the table of products then includes
// it.
func TestNewProductIsOneRow(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles package moe with another table")
	}
	const root = "../../.."
	files := map[string][]byte{}
	for _, name := range []string{"relu.go", "relu_test.go"} {
		text, err := os.ReadFile(filepath.Join("testdata/added", name+".txt")) // a .txt file, because it compiles only with the rows below
		require.NoError(t, err)
		files["moe/internal/kernel/"+name] = text
	}
	insert := func(path, before, line string) {
		text, ok := files[path]
		if !ok {
			var err error
			text, err = os.ReadFile(filepath.Join(root, path))
			require.NoError(t, err)
		}
		require.Equal(t, 1, strings.Count(string(text), before), "%s: %s", path, before)
		files[path] = []byte(strings.Replace(string(text), before, line+before, 1))
	}
	insert("internal/spec/products.go", "	ProductDH\n", "	ProductRelu\n")
	insert("internal/spec/products.go", "	ProductDH: ", `	ProductRelu: {Name: "relu", Weight: sizes.w2, Moved: func(s sizes) float64 { return s.t*s.d + s.r*s.n }},`+"\n")
	insert("moe/internal/kernel/kernels.go", "UpKernel, UpInferenceKernel, UpBesideKernel, DownKernel, AdaptUpKernel", "ReluKernel, ")
	out := overlaytest.Go(t, root, files, "test", "-count=1", "-v", "-run=^TestRelu", "./moe/internal/kernel")
	require.Equal(t, 2, strings.Count(out, "--- PASS: TestRelu"), out)
}
