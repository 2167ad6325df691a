package moe_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe"
)

// TestPictureOfPass checks that the pictures of ARCHITECTURE.md show the launches of a pass over a
// large batch, in their order. Boxes with two braces are launches of layers with biases alone.
func TestPictureOfPass(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	require.NoError(t, err)
	boxes := regexp.MustCompile(`(\[|\{\{)"([a-z0-9-]+):`)
	drawn := func(pass string, biases bool) (names []string) {
		_, picture, found := strings.Cut(string(text), "subgraph "+pass+"\n")
		require.True(t, found, pass)
		picture, _, _ = strings.Cut(picture, "\n  end\n")
		for _, box := range boxes.FindAllStringSubmatch(picture, -1) {
			if biases || box[1] == "[" {
				names = append(names, box[2])
			}
		}
		return names
	}
	for _, biases := range []bool{false, true} {
		tr := trialOn(t, testDevice(t), moe.Config{Hidden: 64, Intermediate: 64, NumExperts: 4, TopK: 2, Bias: biases}, 40, moe.WithoutDecode())
		var launches []string
		tr.Call().Observe(func(kernel string, _ driver.Stream) error {
			launches = append(launches, kernel)
			return nil
		})
		require.NoError(t, tr.Run(context.Background(), tr.Args))
		require.Equal(t, launches, drawn("Forward", biases))
		launches = nil
		require.NoError(t, tr.PrepareBackward(17, moe.BF16))
		require.NoError(t, tr.RunBackward(context.Background(), tr.Back))
		require.Equal(t, launches, drawn("Backward", biases))
	}
}
