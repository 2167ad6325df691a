package command

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var program = Program{Name: "abacus", Purpose: "counts."}

// TestArguments checks that arguments may stand before, between and after flags, and that
// everything after -- is an argument.
func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		args, want string
		tokens     int
	}{
		{"", "", 0}, {"a b", "a b", 0}, {"-tokens 3 a", "a", 3}, {"a -tokens 3", "a", 3}, {"a -tokens=3 b", "a b", 3},
		{"a -- -tokens 3", "a -tokens 3", 0}, {"-- -tokens", "-tokens", 0}, {"-tokens 3 -- b", "b", 3}, {"a - -tokens 3", "a -", 3},
	} {
		set := program.Flags()
		tokens := set.Int("tokens", 0, "")
		got, err := program.ParseWithArguments(set, strings.Fields(tt.args), io.Discard)
		require.NoError(t, err, tt.args)
		assert.Equal(t, tt.want, strings.Join(got, " "), tt.args)
		assert.Equal(t, tt.tokens, *tokens, tt.args)
	}
	_, err := program.ParseWithArguments(program.Flags(), []string{"a", "-no"}, io.Discard)
	assert.Equal(t, Misuse, Code(err))
}
